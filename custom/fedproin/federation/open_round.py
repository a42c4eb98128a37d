"""The answers to one task while they arrive: each is checked, and kept or refused as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedproin.federation.checks import Refused, check_answer, check_update
from fedproin.federation.messages import Answer, Arrays, Task, site_order, size_in_bytes
from fedproin.federation.records import FinalRecord, Scores, SiteRecord
from fedproin.maths.scores import per_class_recall, scores
from fedproin.methods.base import ExtraSpec, Update
from fedproin.settings import Settings


@dataclass(frozen=True)
class Expected:
    """What an answer of this run must look like.

    Attributes:
        shared: names of the tensors that an update carries.
        extras: what it carries beside them.
        synthetic: whether this federation runs on synthetic pictures.
    """

    settings: Settings
    shared: frozenset[str]
    extras: Mapping[str, ExtraSpec]
    synthetic: bool


@dataclass
class OpenRound:
    """One task, the sites that got it, and what came back."""

    task: Task
    targets: Sequence[str]
    expected: Expected
    missing: Mapping[str, str] = field(default_factory=dict)
    _answers: dict[str, Answer] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)

    def accept(self, site: str, answer: Answer) -> str:
        """Check and keep an answer; the reason if it is refused."""
        try:
            self._check(site, answer)
        except Refused as refusal:
            return self.refuse(site, str(refusal))
        except Exception as error:  # an answer so odd that the checks fail on it
            return self.refuse(site, f"it could not be checked ({type(error).__name__})")
        self._answers[site] = answer
        return ""

    def refuse(self, site: str, reason: str) -> str:
        """Remember why a site's answer is not used, unless a good one is already there."""
        if site in self.targets and site not in self._answers:
            self._refused[site] = reason
        return reason

    def records(self) -> dict[str, SiteRecord]:
        """What each target did."""
        return {site: self._record(site) for site in sorted(self.targets, key=site_order)}

    def updates(self) -> list[Update]:
        """The accepted updates, sorted by site: sums do not depend on the order of arrival."""
        answers = [(site, self._answers[site]) for site in sorted(self._answers, key=site_order)]
        return [
            Update(site, a.samples, _to_tensors(a.tensors), _to_tensors(a.extras)) for site, a in answers if a.trained
        ]

    def pooled(self, part: str) -> NDArray[np.int64]:
        """Sum of the sites' confusion counts [C, C] of a part."""
        classes = len(self.expected.settings.data.classes)
        total = np.zeros((classes, classes), np.int64)
        for answer in self._answers.values():
            if part in answer.confusion:
                total += answer.confusion[part].astype(np.int64)
        return total

    def final(self, version: int, validation: Scores, part: str) -> FinalRecord:
        """Test scores of a model: pooled, per class and per site."""
        counts = torch.from_numpy(self.pooled(part))
        scored = {site: a.confusion[part] for site, a in self._answers.items() if part in a.confusion}
        sites = {site: scores(torch.from_numpy(scored[site])) for site in sorted(scored, key=site_order)}
        return FinalRecord(version, validation, scores(counts), counts.tolist(), per_class_recall(counts), sites)

    def _check(self, site: str, answer: Answer) -> None:
        if site not in self.targets:
            raise Refused("it was not asked")
        if site in self._answers:
            raise Refused("it has answered before")
        settings = self.expected.settings
        check_answer(answer, site, self.task, settings, self.expected.synthetic)
        if answer.trained and not answer.error:
            reference = {name: array for name, array in self.task.model.items() if name in self.expected.shared}
            check_update(answer, reference, self.expected.extras, settings.federation.max_step)

    def _record(self, site: str) -> SiteRecord:
        down = size_in_bytes(self.task.model)
        answer = self._answers.get(site)
        if answer is None:
            status = "refused" if site in self._refused else "missing"
            reason = self._refused.get(site) or self.missing.get(site, "no answer")
            return SiteRecord(status, reason, bytes_down=down if status == "refused" else 0)
        if answer.error:
            return SiteRecord("failed", answer.error, answer.seconds, down)
        influence = answer.extras.get("influence")
        return SiteRecord(
            status="trained" if answer.trained else "validated",
            seconds=answer.seconds,
            bytes_down=down,
            bytes_up=size_in_bytes(answer.tensors) + size_in_bytes(answer.extras),
            samples=answer.samples,
            steps=answer.steps,
            losses=dict(answer.losses),
            influence=[] if influence is None else influence.tolist(),
            validation=scores(torch.from_numpy(answer.confusion["val"])) if "val" in answer.confusion else {},
            notes=list(answer.notes),
        )


def _to_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
