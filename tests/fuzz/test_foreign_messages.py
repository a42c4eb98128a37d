"""What a site may send: a good answer changed in places, as FLARE would hand it over, and noise on the wire."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs

from answers import MODEL, RUN
from fedproin.errors import LONGEST_SENTENCE
from fedproin.federation.messages import Answer, Task
from fedproin.federation.open_round import Expected, OpenRound
from fedproin.flare.aggregator import FedProInAggregator
from fedproin.flare.translation import to_shareable
from fedproin.methods.base import ExtraSpec
from foreign import changed, damaged, fuzz, values

UPDATE = {name: np.asarray(array + 1) for name, array in MODEL.items()}
GOOD = asdict(
    Answer(
        kind="round", run_id=RUN, round=4, trained=True, tensors=UPDATE,
        extras={"influence": np.array([[3, 1], [2, 2], [0, 0]])}, samples=8, steps=2, presentations=16,
        losses={"total": [0.5], "task": [0.4]}, confusion={"val": np.eye(3, dtype=np.int64)}, notes=("damaged",),
        seconds=1.5, package="0.1.0+abc",
    )
) | {"notes": ["damaged"]}  # fmt: skip

arrays = st.one_of(
    st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.bool_, ">f4", "U3", "c8", "M8[s]", "V4"]).flatmap(
        lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.zeros(shape, dtype))
    ),
    st.sampled_from([np.nan, np.inf, -1e30, 1e30, -1.0]).map(lambda value: np.full((2, 3), value, np.float32)),
    st.sampled_from([-1, 2**62, -(2**63)]).map(lambda value: np.full((3, 2), value, np.int64)),
    st.just(np.broadcast_to(np.float32(1), (10**6, 10**6))),
)


class RoundServer:
    """The part of the server that sees an answer."""

    def __init__(self, settings) -> None:
        task = Task("round", RUN, "digest", 4, ("a", "b"), ("a", "b"), True, None, MODEL)
        expected = Expected(settings, frozenset(MODEL), {"influence": ExtraSpec((3, 2))}, False)
        self.open = OpenRound(task, ("a", "b"), expected)
        self.accept, self.refuse = self.open.accept, self.open.refuse


@pytest.fixture(scope="module")
def hand_over(make_settings):
    """Hand what came to the server; returns the round after it."""
    settings = make_settings(data={"classes": ["a", "b", "c"]})
    flare_decomposers.register()
    numpy_decomposers.register()

    def hand(shareable) -> OpenRound:
        aggregator = FedProInAggregator()
        aggregator.server = RoundServer(settings)
        if isinstance(shareable, Shareable):
            shareable.set_peer_props({ReservedKey.IDENTITY_NAME: "a"})
        accepted = aggregator.accept(shareable, FLContext())
        assert accepted is bool(aggregator.server.open._answers)
        return aggregator.server.open

    return hand


def check(opened: OpenRound) -> None:
    """Whatever came: it is kept as a whole and fits the model, or is refused with a sentence."""
    for update in opened.updates():
        for name, tensor in update.shared.items():
            assert tensor.shape == MODEL[name].shape
            assert np.isfinite(tensor.numpy()).all()
        assert update.extras["influence"].min() >= 0
        assert update.extras["influence"].sum() <= 16
        assert update.samples >= 1
    record = opened.records()["a"]
    assert record.reason.isprintable()
    assert len(record.reason) <= LONGEST_SENTENCE
    assert (record.status in ("trained", "validated")) == (record.reason == "")
    if record.status == "refused":
        assert (opened.updates(), opened.pooled("val").sum()) == ([], 0)


def test_a_good_answer_counts(hand_over):
    opened = hand_over(to_shareable(Answer(**GOOD)))
    assert opened.records()["a"].status == "trained"
    check(opened)


@fuzz
@given(fields=changed(GOOD, arrays | values))
def test_a_changed_answer(fields, hand_over):
    try:
        message = to_shareable(Answer(**fields))
    except (TypeError, AttributeError, ValueError):  # our own sender could not send that
        return
    check(hand_over(message))


@fuzz
@given(parts=changed({**to_shareable(Answer(**GOOD))}, arrays | values))
def test_a_changed_shareable(parts, hand_over):
    check(hand_over(Shareable(parts) if isinstance(parts, dict) else parts))


@fuzz
@given(data=st.dictionaries(values.filter(lambda key: key.__hash__), arrays | values, max_size=3) | values, meta=values)
def test_another_dxo(data, meta, hand_over):
    dxo = DXO("WEIGHTS", data={"a": 1})
    dxo.data, dxo.meta = data, meta
    try:
        message = dxo.to_shareable()
    except Exception:  # FLARE itself would not send it
        return
    check(hand_over(message))


def test_noise_on_the_wire_is_nothing_or_a_message(hand_over, tmp_path, monkeypatch):
    """FLARE's decoder may raise, in a thread of its own (test_hostile_updates); what it lets through comes to us."""
    monkeypatch.chdir(tmp_path)
    wire = fobs.dumps(to_shareable(Answer(**GOOD)))

    @fuzz
    @given(content=damaged(bytes(wire)))
    def try_(content):
        try:
            message = fobs.loads(content)
        except Exception:
            return
        check(hand_over(message))

    check(hand_over(fobs.loads(wire)))
    try_()
    assert list(tmp_path.iterdir()) == []
