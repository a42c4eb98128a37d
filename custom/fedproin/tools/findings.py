"""What a check at a site found: one line each, with what to do; never a file of the data and never a patient."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of `fedproin doctor`.

    Attributes:
        code: what was looked at, such as `certificate`; the same in every run.
        status: `fail` must be mended before the site joins, `warn` should be looked at.
        message: what was found.
        advice: what to do about it; empty when all is well.
    """

    code: str
    status: Status
    message: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:4}  {self.code:11}  {self.message}" + (f" -> {self.advice}" if self.advice else "")


def ok(code: str, message: str) -> Finding:
    """All is well."""
    return Finding(code, "ok", message)


def warn(code: str, message: str, advice: str) -> Finding:
    """To be looked at."""
    return Finding(code, "warn", message, advice)


def fail(code: str, message: str, advice: str) -> Finding:
    """To be mended before the site joins."""
    return Finding(code, "fail", message, advice)


def any_failed(findings: Iterable[Finding]) -> bool:
    """Whether something must be mended."""
    return any(finding.status == "fail" for finding in findings)
