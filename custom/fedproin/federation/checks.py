"""What the server demands of a site's answer before anything of it is used; a bad answer is refused as a whole."""

import math
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedproin.errors import LONGEST_SENTENCE
from fedproin.federation.messages import Answer, Arrays, Task
from fedproin.methods.base import ExtraSpec
from fedproin.settings import Settings

LARGEST_COUNT = 10**9


class Refused(Exception):
    """An answer that must not be used; the message says why, and names no content of it."""


def check_answer(answer: Answer, site: str, task: Task, settings: Settings, synthetic: bool) -> None:
    """Refuse an answer to another task, with impossible counts, or from a site on other data than the federation's.

    Raises:
        Refused: with the reason.
    """
    if (answer.kind, answer.run_id, answer.round) != (task.kind, task.run_id, task.round):
        raise Refused("it answers another round or run")
    if not isinstance(answer.seconds, float) or not 0 <= answer.seconds < math.inf:
        raise Refused("its seconds are not a time")
    if type(answer.trained) is not bool or type(answer.synthetic) is not bool or not _is_text(answer.package, 100):
        raise Refused("a field is not of its type or length")
    if (answer.error or not answer.trained) and (answer.trained or answer.tensors or answer.extras):
        raise Refused("it has an update that it should not have")
    if answer.error:
        _check_error(answer)
        return
    if answer.synthetic != synthetic:
        raise Refused(f"it used {'synthetic' if answer.synthetic else 'real'} pictures and the federation does not")
    if answer.trained and site not in task.train:
        raise Refused("it trained without being drawn")
    for name in ("samples", "steps", "presentations"):
        if not _is_count(getattr(answer, name)):
            raise Refused(f"its number of {name} is not a count")
    _check_confusion(answer.confusion, task, len(settings.data.classes))
    _check_report(answer, settings.training.local_epochs)


def check_update(answer: Answer, reference: Arrays, extras: Mapping[str, ExtraSpec], max_step: float) -> None:
    """Refuse an update whose names, shapes, types or values do not fit the model that the site received.

    Args:
        answer: with `trained`.
        reference: the tensors that a site shares, as they were sent.
        extras: what the method demands beside them.
        max_step: largest norm of the step, relative to 1 + the norm of the reference.

    Raises:
        Refused: with the reason.
    """
    if min(answer.samples, answer.steps, answer.presentations) < 1:
        raise Refused("it trained without images or steps")
    if set(answer.tensors) != set(reference) or set(answer.extras) != set(extras):
        raise Refused("its tensors have other names than the model's")
    for name, sent in reference.items():
        array = answer.tensors[name]
        if not isinstance(array, np.ndarray) or array.shape != sent.shape or array.dtype != sent.dtype:
            raise Refused("a tensor has another shape or type than the model's")
        if not np.isfinite(array).all():
            raise Refused("a tensor holds NaN or infinite values")
        if name.endswith("running_var") and np.signbit(array).any():
            raise Refused("a variance is negative")
    _check_extras(answer, extras)
    _check_step(answer.tensors, reference, max_step)


def _check_extras(answer: Answer, extras: Mapping[str, ExtraSpec]) -> None:
    shown = max(answer.samples, answer.presentations)
    lengths: dict[str, int] = {}  # what the site chose, by name
    for name, spec in extras.items():
        array = answer.extras[name]
        shape = _resolve(spec.shape, array, lengths, answer.samples)
        if spec.dtype == "int64" and spec.largest is None:
            if not _is_counts(array, shape, shown):
                raise Refused(f"its {name} is not a matrix of counts that fits its training")
        elif not _is_array(array, shape, spec):
            raise Refused(f"its {name} has not the shape, type or range that the method asks for")


def _resolve(shape: tuple[int | str, ...], array: object, lengths: dict[str, int], samples: int) -> tuple[int, ...]:
    """The shape that an extra must have, with the lengths that the site may choose; -1, which none has, if too long."""
    actual = array.shape if isinstance(array, np.ndarray) and array.ndim == len(shape) else (-1,) * len(shape)
    for wanted, length in zip(shape, actual, strict=True):
        if isinstance(wanted, str):
            lengths.setdefault(wanted, length if length <= samples else -1)
    return tuple(lengths[wanted] if isinstance(wanted, str) else wanted for wanted in shape)


def _is_array(array: object, shape: tuple[int, ...], spec: ExtraSpec) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(spec.dtype) or array.shape != shape:
        return False
    if array.dtype == np.bool_ or not array.size:
        return True
    low, high = float(array.min()), float(array.max())  # NaN stays NaN and fails the comparison
    bound = LARGEST_COUNT if spec.largest is None else spec.largest
    return (0 if spec.dtype == "int64" else -bound) <= low and high <= bound


def _check_step(tensors: Arrays, reference: Arrays, max_step: float) -> None:
    floating = [name for name, sent in reference.items() if np.issubdtype(sent.dtype, np.floating)]
    step = math.hypot(*(_norm(np.subtract(tensors[name], reference[name], dtype=np.float64)) for name in floating))
    size = math.hypot(*(_norm(reference[name]) for name in floating))
    if not step <= max_step * (1 + size):
        raise Refused("its step is larger than federation.max_step allows")


def _check_error(answer: Answer) -> None:
    if not _is_text(answer.error, LONGEST_SENTENCE):
        raise Refused("its error is not a sentence")
    if answer.confusion or answer.losses or answer.notes:
        raise Refused("it failed and has a report")


def _check_confusion(confusion: Arrays, task: Task, classes: int) -> None:
    wanted = {"val"} if task.validate else set()
    if task.kind == "score":
        wanted |= {"test_last", "test_best"} if task.best_version is not None else {"test_last"}
    if set(confusion) != wanted:
        raise Refused("its scores are not those that were asked for")
    if not all(_is_counts(counts, (classes, classes), LARGEST_COUNT) for counts in confusion.values()):
        raise Refused("its scores are not counts of the job's classes")


def _check_report(answer: Answer, epochs: int) -> None:
    for name, values in answer.losses.items():
        numbers = isinstance(values, list) and all(isinstance(value, float) for value in values)
        if not re.fullmatch(r"[a-z_]{1,32}", name) or not numbers or len(values) > epochs:
            raise Refused("its losses are not one number a term and epoch")
    if len(answer.losses) > 16 or len(answer.notes) > 16:
        raise Refused("its report is too long")
    if not all(isinstance(note, str) and re.fullmatch(r"[a-z_]{1,40}", note) for note in answer.notes):
        raise Refused("its notes are not codes")


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _is_counts(array: object, shape: tuple[int, ...], largest_sum: int) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.shape != shape:
        return False
    return bool((array >= 0).all()) and int(array.sum(dtype=np.float64)) <= largest_sum


def _norm(array: NDArray[np.generic]) -> float:
    return float(np.linalg.norm(array.astype(np.float64).ravel()))
