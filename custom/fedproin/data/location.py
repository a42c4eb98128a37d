"""Where the images of a site are: only the site knows.

Its kit's `local/fedproin.json` comes first, then the variable FEDPROIN_DATA, and only then the job. A simulation may
have none of them and then draws its own pictures; a hospital never does, unless the job says `data.synthetic`.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedproin.errors import DataError, SettingsError
from fedproin.settings import Settings

VARIABLE = "FEDPROIN_DATA"


@dataclass(frozen=True)
class Location:
    """The data of one process.

    Attributes:
        source: table, folder or ZIP; none means synthetic pictures.
        cache: directory for decoded images.
        simulated: one table is dealt over all sites of the simulation.
    """

    source: Path | None
    cache: Path
    simulated: bool

    @property
    def synthetic(self) -> bool:
        """Whether the package draws the pictures itself."""
        return self.source is None


def locate(settings: Settings, simulated: bool, site_root: Path) -> Location:
    """Find the data of a site whose FLARE workspace is `site_root`.

    Raises:
        DataError: a hospital has no data configured.
    """
    from fedproin.data.cache import default_directory

    cache = default_directory() if simulated else site_root / "fedproin" / "cache"
    if settings.data.synthetic:
        return Location(None, cache, simulated)
    named = _site_file(site_root) or os.environ.get(VARIABLE) or settings.data.path
    if named:
        return Location(_absolute(named), cache, simulated)
    if simulated:
        return Location(None, cache, simulated)
    raise DataError(
        'This site has no data configured; name its table in local/fedproin.json, such as {"data": "/data"}.'
    )


def _site_file(site_root: Path) -> str | None:
    path = site_root / "local" / "fedproin.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text())["data"]
    except (ValueError, KeyError, TypeError):
        data = None
    if not isinstance(data, str) or not data:
        raise SettingsError(
            'local/fedproin.json must hold a JSON object with the text "data", such as {"data": "/data"}.'
        )
    return data


def _absolute(named: str) -> Path:
    """Relative to the directory in which the user typed the command: FLARE has changed the working directory since."""
    return Path(os.environ.get("PWD", ".")) / Path(named).expanduser()
