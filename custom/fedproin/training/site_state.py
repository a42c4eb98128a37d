"""What a site keeps between rounds, on its own disk: previous prototypes or models, local BatchNorm, optimizer moments.

FLARE's simulator starts a new process for each task, and a real site may be restarted, so memory alone is not enough.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedproin.errors import UserError
from fedproin.methods.base import Memory
from fedproin.tensor_file import load_tensors, save_tensors

KEPT = 2


class SiteState:
    """The state files of one site in one run; `round-000012.safetensors` was written at the end of round 12.

    Args:
        directory: of this site; each run has its own folder below it.
        run_id: as minted by the server.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run_id):
            raise ValueError("a run id is 8 to 64 hexadecimal digits")
        self.run_id, self.directory = run_id, directory / run_id

    def save(
        self, round_: int, tensors: Mapping[str, Tensor], best_version: int | None = None, table: str = ""
    ) -> None:
        """Keep the state after training in a round on a table, the one before, and what `load(best_version)` gives.

        All others are removed: a state of a later round is of a time that the server has gone back behind.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        header = self._header(round_) | {"table": table}
        save_tensors(self.directory / f"round-{round_:06d}.safetensors", tensors, header)
        rounds = self._rounds()
        kept = {number for number in rounds if number <= round_}
        best = {number for number in kept if best_version is not None and number < best_version}
        for number in set(rounds) - set(sorted(kept)[-KEPT:]) - set(sorted(best)[-1:]):
            (self.directory / f"round-{number:06d}.safetensors").unlink(missing_ok=True)

    def load(self, before: int) -> Memory | None:
        """The newest state of a round earlier than `before`; none in a first participation or when it is lost.

        Raises:
            UserError: the file is damaged, or was written in another run or round.
        """
        earlier = [number for number in self._rounds() if number < before]
        if not earlier:
            return None
        tensors, header = load_tensors(self.directory / f"round-{earlier[-1]:06d}.safetensors")
        if not self._header(earlier[-1]).items() <= header.items():
            raise UserError("The state of this site is of another run or round; remove it.")
        return Memory(earlier[-1], tensors, str(header.get("table", "")))

    def _header(self, round_: int) -> dict[str, str | int]:
        return {"run_id": self.run_id, "round": round_}

    def _rounds(self) -> list[int]:
        names = (re.fullmatch(r"round-(\d{6})\.safetensors", path.name) for path in self.directory.glob("round-*"))
        return sorted(int(name[1]) for name in names if name)
