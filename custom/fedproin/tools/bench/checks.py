"""The paper's claims, each true, false or not decided on this data, with the numbers; accuracy never alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedproin.tools.bench.scores import SCORES, Bench, Cell

PAPER_SCORES = ("accuracy", "f1_weighted", "mcc")


@dataclass(frozen=True)
class Check:
    """A claim and what became of it; `holds` is none while runs are missing that could decide it."""

    claim: str
    holds: bool | None
    numbers: str

    def __str__(self) -> str:
        verdict = "not decided" if self.holds is None else str(self.holds).lower()
        return f"- **{verdict}**: {self.claim} {self.numbers}"


def checks(bench: Bench) -> list[Check]:
    """All claims that the spec's partitions and rows allow."""
    return [*_first(bench), *_above_fedavg(bench), *_loss(bench)]


def checks_page(bench: Bench) -> str:
    """As Markdown."""
    spec = bench.spec
    head = [
        f"# The paper's claims on {spec.name}",
        "",
        f"{spec.images.capitalize()} scores in percent of the {spec.model} model, means over the {len(spec.seeds)} "
        f"seeds; {spec.label(spec.reference)} against the rows of other methods that the table ranks.",
        "",
    ]
    return "\n".join(head + [str(check) for check in checks(bench)]) + "\n"


def _first(bench: Bench) -> Iterator[Check]:
    """The reference is ahead of every other method, in each score of the paper."""
    spec = bench.spec
    method = spec.rows[spec.reference].method["name"]
    rivals = [row for row in bench.ranked_rows() if spec.rows[row].method["name"] != method]
    for name, partition in spec.partitions.items() if rivals else ():
        verdicts, parts = [], []
        for score, title in SCORES.items():
            own = bench.cell(spec.reference, name, score)
            others = {row: bench.cell(row, name, score) for row in rivals}
            if score in PAPER_SCORES:
                verdicts.append(_is_first(own, list(others.values())))
            best = max((row for row in rivals if others[row].complete), key=lambda row: others[row].mean, default=None)
            rival = f"best other {spec.label(best)} {others[best].mean:.1f}" if best else "no other method has run"
            parts.append(f"{title} {_shown(own)}, {rival}")
        claim = f"{spec.label(spec.reference)} is first in Acc, W-F1 and MCC, {partition.label}."
        yield Check(claim, _all(verdicts), "; ".join(parts) + ".")


def _above_fedavg(bench: Bench) -> Iterator[Check]:
    spec, wanted = bench.spec, bench.spec.claims.above_fedavg
    for fedavg in [row for row in bench.ranked_rows() if spec.rows[row].method["name"] == "fedavg"][:1]:
        for name in _not_iid(bench):
            cells = {s: (bench.cell(spec.reference, name, s), bench.cell(fedavg, name, s)) for s in SCORES}
            claim = (
                f"{spec.label(spec.reference)} is at least {wanted:g} points of accuracy above {spec.label(fedavg)}, "
                f"{spec.partitions[name].label}."
            )
            yield _difference_check(claim, cells, wanted)


def _loss(bench: Bench) -> Iterator[Check]:
    spec, allowed = bench.spec, bench.spec.claims.largest_loss
    for iid in [name for name, partition in spec.partitions.items() if partition.settings.kind == "iid"][:1]:
        for name in _not_iid(bench):
            cells = {s: (bench.cell(spec.reference, name, s), bench.cell(spec.reference, iid, s)) for s in SCORES}
            claim = (
                f"{spec.label(spec.reference)} loses at most {allowed:g} points of accuracy "
                f"from {spec.partitions[iid].label} to {spec.partitions[name].label}."
            )
            yield _difference_check(claim, cells, -allowed)


def _difference_check(claim: str, cells: dict[str, tuple[Cell, Cell]], wanted: float) -> Check:
    """Whether the first accuracy of the pair is ahead of the second by so many points; the other scores beside it."""
    parts = []
    for score, (own, other) in cells.items():
        difference = f" ({own.mean - other.mean:+.1f})" if own.complete and other.complete else ""
        parts.append(f"{SCORES[score]} {_shown(own)} against {_shown(other)}{difference}")
    own, other = cells["accuracy"]
    decided = own.complete and other.complete
    return Check(claim, round(own.mean - other.mean, 9) >= wanted if decided else None, "; ".join(parts) + ".")


def _not_iid(bench: Bench) -> list[str]:
    return [name for name, partition in bench.spec.partitions.items() if partition.settings.kind != "iid"]


def _is_first(own: Cell, others: list[Cell]) -> bool | None:
    if not own.complete:
        return None
    if any(other.complete and other.mean >= own.mean for other in others):
        return False
    return True if all(other.complete for other in others) else None


def _all(verdicts: list[bool | None]) -> bool | None:
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _shown(cell: Cell) -> str:
    return f"{cell.mean:.1f}" if cell.complete else f"not run ({len(cell.values)} of {cell.wanted})"
