"""When a site counts as silent; the clock is the test's."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedproin.flare import pulse as module
from fedproin.flare.pulse import Pulse, ask_job_processes

SITES = {"site-1", "site-2"}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_site_is_silent_when_it_has_not_answered_for_a_minute(clock):
    there, asked = {"site-1"}, []

    def ask(sites):
        asked.append(clock.now)
        return there

    pulse = Pulse(ask)
    for _ in range(60):
        assert pulse.silent(SITES) == set()
        clock.now += 1
    assert pulse.silent(SITES) == set()
    clock.now += 1
    assert pulse.silent(SITES) == {"site-2"}
    assert asked == [1000.0 + 10 * number for number in range(7)]
    there.add("site-2")
    clock.now += 9
    assert pulse.silent(SITES) == set()  # it is back


def test_only_an_ok_is_an_answer():
    replies = {"site-1": make_reply(ReturnCode.OK), "site-2": make_reply(ReturnCode.COMMUNICATION_ERROR)}
    engine = SimpleNamespace(new_context=nullcontext, send_aux_request=lambda **words: replies)
    assert ask_job_processes(engine, SITES) == {"site-1"}
    engine.send_aux_request = lambda **words: None  # what it returns when it fails
    assert ask_job_processes(engine, SITES) == set()


def test_a_silent_site_is_asked_again_when_the_next_task_begins(clock):
    there = set()
    pulse = Pulse(lambda sites: there)
    pulse.silent({"site-1"})
    clock.now += 61
    assert pulse.silent({"site-1"}) == {"site-1"}
    pulse.begin()
    assert pulse.silent({"site-1"}) == {"site-1"}  # it is not waited for a second time
    there.add("site-1")
    pulse.begin()
    assert pulse.silent({"site-1"}) == set()


def test_one_lost_answer_after_a_long_time_is_not_silence(clock):
    there = {"site-1"}
    pulse = Pulse(lambda sites: there)
    pulse.silent({"site-1"})
    clock.now += 3600  # the site has answered its task, and nobody asked
    there.clear()
    pulse.begin()
    assert pulse.silent({"site-1"}) == set()


def test_degenerate_nobody_is_asked_when_nobody_is_waited_for():
    def ask(sites):
        raise AssertionError

    assert Pulse(ask).silent(set()) == set()
