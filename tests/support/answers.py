"""The run and the model that answers in tests are about."""

import numpy as np

RUN = "0123456789abcdef"
MODEL = {
    "w": np.ones((2, 3), np.float32),
    "prototypes": np.ones((3, 2, 4), np.float32),
    "batches": np.array(5, np.int64),
    "norm.running_var": np.ones(3, np.float32),
}
