"""What the server writes down of a run: plain data, from which results, log lines and TensorBoard are made."""

from dataclasses import dataclass, field

Confusion = list[list[int]]
Scores = dict[str, float]


@dataclass
class SiteRecord:
    """One site in one round.

    Attributes:
        status: `trained`, `validated`, `failed` (the site said so), `refused` (its answer was not used) or `missing`.
        reason: one sentence when the status is not `trained` or `validated`.
        losses: each loss term and `total`, its mean over every local epoch.
        influence: [C][M] counts of a trained site, when its method has prototypes.
        validation: pooled-score names and values on the site's own validation part, of the model it received.
    """

    status: str
    reason: str = ""
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    samples: int = 0
    steps: int = 0
    losses: dict[str, list[float]] = field(default_factory=dict)
    influence: list[list[int]] = field(default_factory=list)
    validation: Scores = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class RoundRecord:
    """One round: training from model version `round` (0 is the initial model) to version `round + 1`.

    Attributes:
        counted: enough updates were accepted; if not, the model stayed as it was.
        participants: the sites that were drawn.
        validation: pooled scores of model version `round` over the validation parts of all sites; empty if not scored.
        confusion: the counts behind them, rows are true classes.
        unused: [C][M] true where no participant used the prototype, which therefore kept its value.
    """

    round: int
    participants: list[str]
    sites: dict[str, SiteRecord]
    counted: bool = False
    validation: Scores = field(default_factory=dict)
    confusion: Confusion = field(default_factory=list)
    unused: list[list[bool]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class FinalRecord:
    """The test scores of one model.

    Attributes:
        version: rounds of training that the model has seen.
        validation: pooled validation scores that picked it.
        recall: per class, none where no site has a test image of it.
        sites: accuracy and the other scores on every site's own test part.
    """

    version: int
    validation: Scores
    test: Scores
    confusion: Confusion
    recall: list[float | None]
    sites: dict[str, Scores]


@dataclass
class RunRecord:
    """A whole run, as `results.json` holds it.

    Attributes:
        versions: of fedproin (with code hash), python, nvflare, torch, torchvision, monai, numpy.
        data: `synthetic`, or `table`; never a path.
        partition: how a simulation dealt the table; empty at hospitals.
        last, best: test scores; none until the run has ended.
    """

    run: str
    run_id: str
    method: str
    seed: int
    settings_digest: str
    settings: dict[str, object]
    versions: dict[str, str]
    classes: list[str]
    site_names: list[str]
    data: str
    partition: str = ""
    rounds: list[RoundRecord] = field(default_factory=list)
    last: FinalRecord | None = None
    best: FinalRecord | None = None
    seconds: float = 0.0
