"""Where the images of a site are: only the site knows.

Its kit's `local/fedproin.json` comes first, then the variable FEDPROIN_DATA, and only then the job. A simulation may
have none of them and then draws its own pictures; a hospital never does, unless the job says `data.synthetic`.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pydantic

from fedproin.errors import NOT_JSON, DataError, SettingsError
from fedproin.settings import STRICT, Settings, parse

VARIABLE = "FEDPROIN_DATA"
SITE_FILE = "fedproin.json"  # in the kit's folder `local`


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class SiteFile:
    """A site's own `local/fedproin.json`.

    Attributes:
        data: table, folder or ZIP.
        minimum_count: fewest images of a class that the site has; with fewer it takes no part, none are fine.
    """

    data: str
    minimum_count: Annotated[int, pydantic.Field(ge=0)] = 0


@dataclass(frozen=True)
class Location:
    """The data of one process.

    Attributes:
        source: table, folder or ZIP; none means synthetic pictures.
        cache: directory for decoded images.
        simulated: one table is dealt over all sites of the simulation.
        minimum_count: as in the site's own file.
    """

    source: Path | None
    cache: Path
    simulated: bool
    minimum_count: int = 0

    @property
    def synthetic(self) -> bool:
        """Whether the package draws the pictures itself."""
        return self.source is None

    @property
    def dealt(self) -> bool:
        """Whether all sites share one table, which is dealt out; in a rehearsal with synthetic pictures they do too."""
        return self.simulated or self.synthetic


def locate(settings: Settings, simulated: bool, site_root: Path) -> Location:
    """Find the data of a site whose FLARE workspace is `site_root`.

    Raises:
        DataError: a hospital has no data configured.
    """
    from fedproin.data.cache import default_directory

    cache = default_directory() if simulated else site_root / "fedproin" / "cache"
    if settings.data.synthetic:
        return Location(None, cache, simulated)
    site_file = read_site_file(site_root)
    named = site_file.data if site_file else os.environ.get(VARIABLE) or settings.data.path
    if named:
        return Location(_absolute(named), cache, simulated, site_file.minimum_count if site_file else 0)
    if simulated:
        return Location(None, cache, simulated)
    raise DataError(
        'This site has no data configured; name its table in local/fedproin.json, such as {"data": "/data"}.'
    )


def read_site_file(site_root: Path) -> SiteFile | None:
    """The `local/fedproin.json` of a site whose FLARE workspace is `site_root`; none if it has none.

    Raises:
        SettingsError: the file is there and cannot be used.
    """
    path = site_root / "local" / SITE_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text())
        named = values["data"]
    except (OSError, *NOT_JSON, KeyError, TypeError):
        named = None
    if not isinstance(named, str) or not named:
        raise SettingsError(
            'local/fedproin.json must hold a JSON object with the text "data", such as {"data": "/data"}.'
        )
    return parse(SiteFile, values, "local/fedproin.json")


def _absolute(named: str) -> Path:
    """Relative to the directory in which the user typed the command: FLARE has changed the working directory since."""
    try:
        return Path(os.environ.get("PWD", ".")) / Path(named).expanduser()
    except RuntimeError:  # the home of a user that there is not
        raise DataError(
            "The path of the data begins with the home of an unknown user: write it from the root."
        ) from None
