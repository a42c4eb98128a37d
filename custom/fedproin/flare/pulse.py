"""Which sites have fallen silent in a job: FLARE itself does not notice all that are gone.

When a site's daemon dies and comes back, FLARE registers it anew and forgets that its part of the job is missing: no
site is reported dead, and a round without a deadline would stay open for ever. So the job's own process is asked.
"""

import time
from collections.abc import Callable, Collection
from typing import Any

from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.shareable import Shareable

ASK_EVERY_SECONDS = 10.0  # as often as a site's job process says by itself that it is there
ANSWER_WITHIN_SECONDS = 5.0
SILENT_AFTER_SECONDS = 60.0  # a network may be away for a moment; FLARE's grace for a site that it holds for dead

Ask = Callable[[Collection[str]], set[str]]
"""Which of these sites answer."""


class Pulse:
    """Feels the pulse of the sites that a task waits for.

    Args:
        ask: is called when a task begins, and every `ASK_EVERY_SECONDS` while it lasts.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._silent_since: dict[str, float] = {}
        self._next = 0.0

    def begin(self) -> None:
        """A task begins: a site that was silent may be there again."""
        self._next = 0.0

    def silent(self, sites: Collection[str]) -> set[str]:
        """The sites that have not answered for `SILENT_AFTER_SECONDS`."""
        now = time.monotonic()
        if sites and now >= self._next:
            there = self._ask(sites)
            known = self._silent_since
            self._silent_since = {site: known.get(site, now) for site in {*known, *sites} - there}
            self._next = now + ASK_EVERY_SECONDS
        return {site for site in sites if now - self._silent_since.get(site, now) > SILENT_AFTER_SECONDS}


def ask_job_processes(engine: Any, sites: Collection[str]) -> set[str]:
    """The sites whose process of this job answers FLARE's own heart-beat.

    Args:
        engine: of the server's job process.
    """
    with engine.new_context() as fl_ctx:
        replies = engine.send_aux_request(
            targets=list(sites),
            topic=ReservedTopic.JOB_HEART_BEAT,
            request=Shareable(),
            timeout=ANSWER_WITHIN_SECONDS,
            fl_ctx=fl_ctx,
            optional=True,
        )
    return {site for site, reply in (replies or {}).items() if reply.get_return_code() == ReturnCode.OK}
