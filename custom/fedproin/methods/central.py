"""Central training: one site has the pictures of all; the upper bound, possible in a simulation only."""

from typing import Literal

from pydantic.dataclasses import dataclass

from fedproin.methods.softmax import SoftmaxMethod
from fedproin.settings import STRICT


@dataclass(frozen=True, config=STRICT)
class CentralOptions:
    """Central training has no options of its own."""

    name: Literal["central"] = "central"


class Central(SoftmaxMethod):
    """Cross-entropy on the union of all training parts, at one site; scored at all sites, as any global model."""

    options_class = CentralOptions
    trains_on = "union"
