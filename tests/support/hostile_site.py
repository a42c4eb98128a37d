"""A site that trains well and then sends something else: in each round one of FAULTS, in their order.

It runs inside a changed copy of the package at the site (`take_over`), so that nothing of ours stands between it and
FLARE's wire; the tests import the table too.
"""

import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, V
from nvflare.apis.shareable import Shareable, make_reply

from fedproin.federation.messages import Answer, Task
from fedproin.flare.translation import KEY, from_flare, to_shareable

VICTIM = "site-1"
TRACE = "the-hostile-site-was-here"
MEBIBYTE = 2**20


@dataclass
class Sending:
    """What the hostile executor has at hand in a round."""

    task: Shareable
    fl_ctx: FLContext
    past: list[Answer] = field(default_factory=list)

    def send(self, answer: Answer) -> None:
        """Past FLARE's client, which would send one result only."""
        reply = to_shareable(answer)
        reply.set_cookie_jar(self.task.get_cookie_jar())
        reply.set_header(ReservedKey.TASK_NAME, answer.kind)
        self.fl_ctx.get_engine().send_task_result(reply, self.fl_ctx, timeout=30.0)


def filled(name: str, value: float) -> Callable[[Answer, Sending], Answer]:
    """An update with one number of a tensor replaced."""

    def spoil(answer: Answer, _: Sending) -> Answer:
        array = answer.tensors[name].copy()
        array.flat[-1] = value
        return replace(answer, tensors={**answer.tensors, name: array})

    return spoil


def tensors(change: Callable[[Any], dict[str, Any]]) -> Callable[[Answer, Sending], Answer]:
    """An update with some tensors replaced."""
    return lambda answer, _: replace(answer, tensors={**answer.tensors, **change(answer.tensors)})


def influence(change: Callable[[Any], Any]) -> Callable[[Answer, Sending], Answer]:
    """An update with other counts of its prototypes."""
    return lambda answer, _: replace(answer, extras={"influence": change(answer.extras["influence"])})


def fields(**changes: Any) -> Callable[[Answer, Sending], Answer]:
    """An answer with other fields."""
    return lambda answer, _: replace(answer, **changes)


def with_meta(**more: Any) -> Callable[[Answer, Sending], Shareable]:
    """A good answer that carries something beside its fields, of types that FLARE's own client would send."""

    def spoil(answer: Answer, _: Sending) -> Shareable:
        dxo = from_shareable(to_shareable(answer))
        dxo.meta[KEY] |= more
        return dxo.to_shareable()

    return spoil


def as_the_victim(answer: Answer, sending: Sending) -> Answer:
    """Says in FLARE's own header that it is another site."""
    sending.fl_ctx.props[ReservedKey.IDENTITY_NAME][V] = VICTIM
    return filled(PROTOTYPES, np.nan)(answer, sending)


def twice(answer: Answer, sending: Sending) -> Answer:
    """A good answer, and another one with other numbers to the same task."""
    sending.send(answer)
    sending.send(replace(answer, samples=answer.samples * 1000))
    return replace(answer, samples=answer.samples * 1000)


PROTOTYPES, WEIGHT = "prototypes", "encoder.conv1.weight"
OBJECT = {
    "__fobs_type__": "subprocess.Popen",
    "__fobs_data__": {"args": ["touch", TRACE]},
    "__fobs_dc__": "nvflare.fuel.utils.fobs.decomposer.DataClassDecomposer",
}
COMPONENT = {"path": "subprocess.Popen", "args": {"args": ["touch", TRACE]}}

VALUES = "a tensor holds NaN or infinite values"
STEP = "its step is larger than federation.max_step allows"
SHAPE = "a tensor has another shape or type than the model's"
NAMES = "its tensors have other names than the model's"
INFLUENCE = "its influence is not a matrix of counts that fits its training"
SAMPLES = "its number of samples is not a count"
NO_MESSAGE = "it is not a message of this package"

FAULTS: dict[str, tuple[Callable[[Answer, Sending], Answer | Shareable], str]] = {
    "NaN": (filled(PROTOTYPES, np.nan), VALUES),
    "infinite": (filled(WEIGHT, -np.inf), VALUES),
    "huge": (filled(WEIGHT, 1e30), STEP),
    "another shape": (tensors(lambda own: {PROTOTYPES: own[PROTOTYPES].T}), SHAPE),
    "another name": (tensors(lambda own: {"classifier": own[PROTOTYPES]}), NAMES),
    "another type": (tensors(lambda own: {PROTOTYPES: own[PROTOTYPES].astype(np.float64)}), SHAPE),
    "no DXO": (lambda answer, _: Shareable({"weights": answer.tensors}), NO_MESSAGE),
    "a DXO of another kind": (lambda *_: DXO(DataKind.METRICS, data={"accuracy": 1.0}).to_shareable(), NO_MESSAGE),
    "a return code that makes FLARE abort": (lambda *_: make_reply(ReturnCode.UNSAFE_JOB), "FLARE reported UNSAFE_JOB"),
    "a return code that is none": (lambda *_: make_reply("x" * MEBIBYTE), "FLARE reported an unknown code"),
    "an old round": (lambda _, sending: sending.past[-1], "it answers another round or run"),
    "negative influence": (influence(lambda counts: -counts), INFLUENCE),
    "absurd influence": (influence(lambda counts: counts + 10**12), INFLUENCE),
    "negative samples": (fields(samples=-8), SAMPLES),
    "absurd samples": (fields(samples=10**15), SAMPLES),
    "no samples": (fields(samples=0), "it trained without images or steps"),
    "a tensor of 64 MiB": (tensors(lambda own: {WEIGHT: np.zeros((16, MEBIBYTE), np.float32)}), SHAPE),
    "a text of 16 MiB": (fields(package="x" * 16 * MEBIBYTE), "a field is not of its type or length"),
    "a class path": (with_meta(component=COMPONENT), NO_MESSAGE),
    "an object that FLARE knows": (with_meta(notes=Namespace()), "it could not be checked (TypeError)"),
    "the name of another site": (as_the_victim, VALUES),
    "an object that FLARE does not know": (with_meta(component=OBJECT), "it was too late for the deadline"),
}  # fmt: skip
ROUNDS = [*FAULTS, "two answers", "none"]  # in the last two it counts: the first of the answers, and its only one


def take_over(executor: ModuleType) -> None:
    """Change the executor of the package that this module was copied into."""
    executor.require_same_package = lambda config_directory: None
    honest, past = executor.FedProInExecutor.execute, []

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        task = from_flare(Task, shareable)
        answer = from_flare(Answer, honest(self, task_name, shareable, fl_ctx, abort_signal))
        if task.kind == "score" or ROUNDS[task.round] == "none":
            return to_shareable(answer)
        spoil = twice if ROUNDS[task.round] == "two answers" else FAULTS[ROUNDS[task.round]][0]
        spoiled = spoil(answer, Sending(shareable, fl_ctx, past))
        past.append(answer)
        return to_shareable(spoiled) if isinstance(spoiled, Answer) else spoiled

    executor.FedProInExecutor.execute = execute


def hostile_package(package: Path) -> None:
    """Change a copy of the package: this module is in it, and its executor is another one."""
    shutil.copy(__file__, package / "flare" / "hostile_site.py")
    with (package / "flare" / "executor.py").open("a") as file:
        file.write("\nimport sys\nfrom fedproin.flare import hostile_site\n")
        file.write("hostile_site.take_over(sys.modules[__name__])\n")
