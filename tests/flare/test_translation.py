import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils import fobs

from fedproin.federation.messages import Answer, Task
from fedproin.flare.translation import KEY, from_flare, to_shareable

TASK = Task(
    kind="score",
    run_id="ab" * 16,
    settings_digest="cd" * 32,
    round=3,
    sites=("site-1", "site-2"),
    train=("site-2",),
    validate=True,
    deadline_seconds=None,
    model={"encoder.0.weight": np.ones((2, 3), np.float32), "encoder.1.count": np.array(7)},
    best={"encoder.0.weight": np.zeros((2, 3), np.float32)},
    best_version=2,
)
ANSWER = Answer(
    kind="round",
    run_id="ab" * 16,
    round=3,
    trained=True,
    tensors={"prototypes": np.ones((2, 1, 3), np.float32)},
    extras={"influence": np.array([[3], [0]])},
    samples=5,
    steps=2,
    presentations=5,
    losses={"total": [0.5, 0.25]},
    confusion={"val": np.eye(2, dtype=np.int64)},
    notes=("single_image_batch",),
    seconds=1.5,
    package="0.1.0+abc",
)


def through_the_wire(shareable: Shareable) -> Shareable:
    """What FLARE does between two processes."""
    flare_decomposers.register()
    fobs.register(NumpyArrayDecomposer)
    return fobs.loads(fobs.dumps(shareable))


@pytest.mark.parametrize("message", [TASK, ANSWER], ids=["task", "answer"])
def test_a_message_survives_flare(message):
    back = from_flare(type(message), through_the_wire(to_shareable(message)))
    np.testing.assert_equal(vars(back), vars(message))


def test_only_model_tensors_are_data_that_stock_filters_change():
    dxo = from_shareable(to_shareable(ANSWER))
    assert list(dxo.data) == ["tensors/prototypes"]
    assert "influence" in dxo.get_meta_prop(KEY)["extras"]


@pytest.mark.parametrize(
    "shareable",
    [
        pytest.param(Shareable(), id="no DXO"),
        pytest.param(DXO(DataKind.WEIGHTS, data={"tensors/a": np.ones(2)}).to_shareable(), id="no meta"),
        pytest.param(DXO(DataKind.WEIGHT_DIFF, data={"tensors/a": np.ones(2)}).to_shareable(), id="another data kind"),
        pytest.param(
            DXO(DataKind.WEIGHTS, data={"other/a": np.ones(2)}, meta={KEY: {}}).to_shareable(), id="an unknown part"
        ),
        pytest.param(
            DXO(DataKind.WEIGHTS, data={"tensors/a": np.ones(2)}, meta={KEY: {"kind": "round"}}).to_shareable(),
            id="fields missing",
        ),
    ],
)
def test_what_is_not_a_message_is_refused(shareable):
    with pytest.raises(ValueError, match=r"."):
        from_flare(Answer, shareable)
