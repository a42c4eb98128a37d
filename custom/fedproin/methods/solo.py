"""SOLO: every site trains alone."""

from typing import Literal

from pydantic.dataclasses import dataclass

from fedproin.methods.personal import PersonalMethod
from fedproin.settings import STRICT


@dataclass(frozen=True, config=STRICT)
class SoloOptions:
    """SOLO has no options of its own."""

    name: Literal["solo"] = "solo"


class Solo(PersonalMethod):
    """Cross-entropy on the site's own images; nothing but scores leaves it."""

    options_class = SoloOptions
