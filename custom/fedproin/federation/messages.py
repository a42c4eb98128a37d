"""What server and sites say to each other: plain strings, numbers and numpy arrays, no objects.

The same messages travel through FLARE, through the pipe to a trainer process, and inside the local engine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
Kind = Literal["round", "score"]


@dataclass(frozen=True)
class Task:
    """The server's message to its sites.

    Attributes:
        kind: `round` (validate the model if asked, train if drawn) or `score` (the test part, after the last round).
        sites: every site of the federation; a simulated table is dealt over them.
        train: the sites that train in this round.
        validate: score the received model on the validation part.
        deadline_seconds: how long a site may take; none in a simulation.
        model: the global model's public tensors.
        best: the best validated model's public tensors; only in `score`.
        best_version: rounds of training that the best validated model so far has seen; none before the first
            validation. What a site keeps of that time it must not throw away.
        trained_before: the sites whose update of an earlier round was accepted: they should remember something.
    """

    kind: Kind
    run_id: str
    settings_digest: str
    round: int
    sites: tuple[str, ...]
    train: tuple[str, ...]
    validate: bool
    deadline_seconds: float | None
    model: Arrays
    best: Arrays = field(default_factory=dict)
    best_version: int | None = None
    trained_before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A site's message to the server; the identity of the sender comes from the transport, not from here.

    Attributes:
        error: one safe sentence when the site could not do the task; empty otherwise.
        trained: whether the site trained; if not, `tensors` and `extras` are empty.
        tensors: the method's shared tensors, like the public ones of the task.
        extras: what else the method sends, such as the influence matrix.
        samples: raw training images of the site.
        steps: optimizer steps of this round.
        presentations: images shown in training, of all epochs.
        losses: each loss term, its mean over every epoch.
        confusion: int64 [C, C] counts, rows are true classes: `val` of the received model; `test_last`, `test_best`.
        notes: codes of what happened and is worth a line, such as `state_lost`.
        seconds: wall time at the site.
        synthetic: the site drew its own pictures.
        package: version and code hash of the package that ran.
    """

    kind: Kind
    run_id: str
    round: int
    error: str = ""
    trained: bool = False
    tensors: Arrays = field(default_factory=dict)
    extras: Arrays = field(default_factory=dict)
    samples: int = 0
    steps: int = 0
    presentations: int = 0
    losses: Mapping[str, list[float]] = field(default_factory=dict)
    confusion: Arrays = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    synthetic: bool = False
    package: str = ""


def site_order(site: str) -> tuple[list[str | int], str]:
    """Sort key that puts site-2 before site-10; no two names share one, so that order never is that of arrival."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", site)], site


def size_in_bytes(arrays: Arrays) -> int:
    """Bytes of all arrays together, as they travel."""
    return sum(array.nbytes for array in arrays.values())
