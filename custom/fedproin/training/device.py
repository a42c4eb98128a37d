"""The device of a process, and what makes its arithmetic repeatable."""

import os

import torch

from fedproin.errors import SettingsError
from fedproin.settings import TrainingSettings

AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16}


def prepare_device(training: TrainingSettings) -> tuple[torch.device, torch.dtype | None]:
    """Fix threads and algorithms of this process; return the device and the encoder's reduced precision, if any."""
    torch.set_num_threads(training.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with a fixed workspace
    torch.use_deterministic_algorithms(True)
    gpu = torch.cuda.is_available()
    if training.device == "cuda" and not gpu:
        raise SettingsError("training.device is cuda, but this machine has no usable GPU; set it to auto or cpu.")
    device = torch.device("cpu" if training.device == "cpu" or not gpu else "cuda")
    best = "bfloat16" if device.type == "cuda" else "float32"
    return device, AUTOCAST[best if training.precision == "auto" else training.precision]
