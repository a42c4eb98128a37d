"""Who takes part: whether a federation can run at all, and which sites train in a round."""

from collections.abc import Sequence
from random import Random

from fedproin.errors import SettingsError
from fedproin.federation.messages import site_order
from fedproin.seeds import derive_seed
from fedproin.settings import FederationSettings

FEWEST_SITES = 2


def draw(seed: int, round_: int, sites: Sequence[str], participation: float) -> tuple[str, ...]:
    """The sites that train in a round: a function of (seed, round) alone, so a resumed run draws the same."""
    drawn = Random(derive_seed(seed, round_, "draw")).sample(sorted(sites), drawn_sites(participation, len(sites)))
    return tuple(sorted(drawn, key=site_order))


def drawn_sites(participation: float, sites: int) -> int:
    """How many sites train in a round."""
    return max(1, round(participation * sites))


def require_sites(federation: FederationSettings, sites: Sequence[str], trains_on: str = "own") -> None:
    """Refuse a federation in which no round could count.

    Args:
        trains_on: as the method's; on the `union` of all images one site trains for all.

    Raises:
        SettingsError: too few sites, a quorum that no round can reach, or a site with the name of the global model.
    """
    needed = max(FEWEST_SITES, federation.quorum)
    if "global" in sites:
        raise SettingsError("No site may be called 'global': TensorBoard shows the global model under that name.")
    if len(sites) < needed:
        raise SettingsError(
            f"This job needs at least {needed} sites and there are {len(sites)}; start it with more (-n {needed})."
        )
    drawn = 1 if trains_on == "union" else drawn_sites(federation.participation, len(sites))
    if federation.quorum > drawn:
        remedy = "" if trains_on == "union" else ", or raise federation.participation"
        raise SettingsError(
            f"No round would count: federation.quorum is {federation.quorum} and {drawn} of {len(sites)} "
            f"sites train in a round; lower it{remedy}."
        )
