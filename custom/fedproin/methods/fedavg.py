"""FedAvg: local cross-entropy, average of the models by images (McMahan et al., AISTATS 2017)."""

from typing import Literal

from pydantic.dataclasses import dataclass

from fedproin.methods.softmax import SoftmaxMethod
from fedproin.settings import STRICT


@dataclass(frozen=True, config=STRICT)
class FedAvgOptions:
    """FedAvg has no options of its own."""

    name: Literal["fedavg"] = "fedavg"


class FedAvg(SoftmaxMethod):
    """Encoder and linear head, averaged over the participants with their numbers of images as weights."""

    options_class = FedAvgOptions
