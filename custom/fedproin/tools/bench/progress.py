"""What a person sees while a bench runs: one line a run, with the time that is left."""

from dataclasses import dataclass, field

from fedproin.federation.console import duration
from fedproin.tools.bench.plan import Run


@dataclass
class Progress:
    """Counts runs.

    Attributes:
        total: all runs of the bench.
        done: those that have a result.
        workers: how many run at the same time.
    """

    total: int
    done: int
    workers: int
    failed: int = 0
    _seconds: list[float] = field(default_factory=list)

    def ended(self, run: Run, seconds: float, failure: str) -> None:
        """Print the line of a run; `failure` says why it has no result, if it has none."""
        if failure:
            self.failed += 1
            print(f"{self._count()}  {run}  FAILED after {duration(seconds, 0)}: {failure}", flush=True)
            return
        self.done += 1
        self._seconds.append(seconds)
        print(f"{self._count()}  {run}  {duration(seconds, 0)}{self._outlook()}", flush=True)

    def _count(self) -> str:
        return f"{self.done:>{len(str(self.total))}}/{self.total}"

    def _outlook(self) -> str:
        mean = sum(self._seconds) / len(self._seconds)
        left = (self.total - self.done - self.failed) * mean / self.workers
        return f"  (mean {duration(mean, 0)} a run, {duration(left, 0)} left)"
