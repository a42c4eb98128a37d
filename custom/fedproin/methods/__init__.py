"""The methods by name; to add one, add its line here (CONTRIBUTING.md has the whole list of places)."""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from fedproin.errors import SettingsError
from fedproin.settings import Settings

if TYPE_CHECKING:
    from fedproin.methods.base import Method

METHODS = {
    "balancefl": "fedproin.methods.balancefl:BalanceFl",
    "central": "fedproin.methods.central:Central",
    "fedavg": "fedproin.methods.fedavg:FedAvg",
    "fedplvm": "fedproin.methods.fedplvm:FedPlvm",
    "fedproc": "fedproin.methods.fedproc:FedProc",
    "fedproin": "fedproin.methods.fedproin:FedProIn",
    "fedproto": "fedproin.methods.fedproto:FedProto",
    "fedprox": "fedproin.methods.fedprox:FedProx",
    "fedtgp": "fedproin.methods.fedtgp:FedTgp",
    "moon": "fedproin.methods.moon:Moon",
    "solo": "fedproin.methods.solo:Solo",
}


def create_method(settings: Settings) -> "Method":
    """The method that the settings name, its options checked.

    Raises:
        SettingsError: no such method, or an option that it does not have.
    """
    name = settings.method.get("name", "fedproin")
    if not isinstance(name, str) or name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(METHODS)}."
        raise SettingsError(f"Unknown method {name!r}: {hint}")
    module, _, cls = METHODS[name].partition(":")
    method: Method = getattr(import_module(module), cls)(settings)
    return method
