from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedproin.federation.messages import Answer
from fedproin.flare.aggregator import FedProInAggregator
from fedproin.flare.translation import to_shareable


class FakeServer:
    """Records what reaches it."""

    def __init__(self, verdict: str = "") -> None:
        self.verdict, self.accepted, self.refused = verdict, [], []

    def accept(self, site: str, answer: Answer) -> str:
        self.accepted.append((site, answer))
        return self.verdict

    def refuse(self, site: str, reason: str) -> str:
        self.refused.append((site, reason))
        return reason

    def global_model(self) -> dict[str, np.ndarray]:
        return {"prototypes": np.ones(3, np.float32)}


@pytest.fixture
def aggregator():
    aggregator = FedProInAggregator()
    aggregator.server = FakeServer()
    return aggregator


def sent_by(site: str, shareable: Shareable) -> Shareable:
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    return shareable


ANSWER = Answer("round", "ab" * 16, 0)


def test_an_answer_reaches_the_server_under_the_name_of_its_sender(aggregator):
    assert aggregator.accept(sent_by("site-3", to_shareable(ANSWER)), FLContext())
    assert [site for site, _ in aggregator.server.accepted] == ["site-3"]


def test_a_refusal_is_no_exception(aggregator):
    aggregator.server = FakeServer(verdict="a tensor holds NaN or infinite values")
    assert not aggregator.accept(sent_by("site-3", to_shareable(ANSWER)), FLContext())


@pytest.mark.parametrize(
    ("shareable", "reason"),
    [
        (make_reply(ReturnCode.EXECUTION_EXCEPTION), "FLARE reported EXECUTION_EXCEPTION"),
        (make_reply("\x1b[31m" + "x" * 10**6), "FLARE reported an unknown code"),
        (make_reply(["OK"]), "FLARE reported an unknown code"),
        (Shareable(), "it is not a message of this package"),
    ],
)
def test_what_is_no_answer_is_recorded_with_its_reason(aggregator, shareable, reason):
    assert not aggregator.accept(sent_by("site-3", shareable), FLContext())
    assert aggregator.server.refused == [("site-3", reason)]


def test_nothing_that_arrives_raises(aggregator):
    broken = SimpleNamespace()  # has none of a Shareable's methods
    assert not aggregator.accept(broken, FLContext())


def test_no_answer_is_taken_before_a_run_or_after_it(aggregator):
    aggregator.server = None
    assert not aggregator.accept(sent_by("site-3", to_shareable(ANSWER)), FLContext())


def test_aggregate_gives_the_global_model(aggregator):
    assert list(from_shareable(aggregator.aggregate(FLContext())).data) == ["prototypes"]
    aggregator.server = None
    assert aggregator.aggregate(FLContext()).get_return_code() == ReturnCode.EMPTY_RESULT
