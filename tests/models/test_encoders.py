import builtins
import copy
import urllib.error

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from fedproin.errors import SettingsError
from fedproin.models.encoders import build_encoder, input_statistics


def seeded(backbone: str, **options):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build_encoder(backbone, image_size=32, **options)


def trainable(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.fixture(scope="module")
def torchvision_network():
    return torchvision.models.resnet18().eval()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPROIN_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def no_network(request):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("torch.hub.urlopen", no_network)


def test_full_width_is_torchvisions_network(torchvision_network):
    encoder = build_encoder("resnet18", image_size=64).eval()
    state = {k: v for k, v in torchvision_network.state_dict().items() if not k.startswith("fc.")}
    encoder.load_state_dict(state)
    reference = copy.deepcopy(torchvision_network)
    reference.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images), reference(images), rtol=0, atol=0)


def test_full_width_starts_with_torchvisions_spread(torchvision_network):
    encoder = build_encoder("resnet18", image_size=64)
    reference = dict(torchvision_network.named_parameters())
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.std(), reference[name].std(), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("width", "parameters"), [(64, 11_176_512), (16, 702_096)], ids=["the paper's", "the quick job's"]
)
def test_parameters_of_resnet18(width, parameters):
    encoder = build_encoder("resnet18", width=width, image_size=32)
    assert trainable(encoder) == parameters
    assert encoder.feature_size == 8 * width


@pytest.mark.parametrize(
    ("backbone", "options", "size"), [("resnet18", {"width": 8}, 64), ("efficientnet_lite0", {}, 1280)]
)
@pytest.mark.parametrize("image_size", [32, 45])
def test_features(backbone, options, size, image_size):
    encoder = build_encoder(backbone, image_size=image_size, **options)
    features = encoder(torch.randn(2, 3, image_size, image_size))
    assert features.shape == (2, size)
    assert encoder.feature_size == size
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(("backbone", "options"), [("resnet18", {"width": 8}), ("efficientnet_lite0", {})])
def test_building_depends_on_the_global_seed_alone(backbone, options):
    first, second = seeded(backbone, **options).state_dict(), seeded(backbone, **options).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("backbone", "options"), [("resnet18", {"width": 8}), ("efficientnet_lite0", {})])
def test_a_frozen_copy_agrees_in_training_mode(backbone, options):
    encoder = build_encoder(backbone, image_size=32, **options)
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(copy.deepcopy(encoder)(images), encoder(images))


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet_lite0"])
def test_batchnorm_follows_the_data_within_a_few_steps(backbone):
    layers = [m for m in build_encoder(backbone, image_size=32).modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert {round(layer.momentum, 6) for layer in layers} == {0.1}


def test_input_statistics():
    assert input_statistics("resnet18") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert input_statistics("efficientnet_lite0") == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("ask", [input_statistics, lambda backbone: build_encoder(backbone, image_size=32)])
def test_an_unknown_backbone_is_refused(ask):
    with pytest.raises(SettingsError, match="known are resnet18, efficientnet_lite0"):
        ask("resnet19")


def test_efficientnet_starts_from_the_weights_of_its_package():
    encoder = build_encoder("efficientnet_lite0", image_size=32, pretrained=True)
    assert encoder.network._bn0.running_var.mean().item() == pytest.approx(6.7053, abs=1e-3)  # read from the file
    assert trainable(encoder) == 3_371_008  # 4,652,008 with its classifier of 1,281,000


def test_efficientnet_has_one_width():
    with pytest.raises(SettingsError, match=r"model\.width"):
        build_encoder("efficientnet_lite0", width=16, image_size=32)


def test_efficientnet_that_is_not_installed(monkeypatch):
    real_import = builtins.__import__

    def without(name, *rest: object):
        if name.startswith("efficientnet"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError, match=r"fedproin\[efficientnet\]"):
        build_encoder("efficientnet_lite0", image_size=32)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("way", ["setting", "variable", "relative to the user's directory"])
def test_local_weights(suffix, way, torchvision_network, offline, tmp_path, monkeypatch):
    path, given = tmp_path / f"resnet18{suffix}", None
    state = torchvision_network.state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    if way == "setting":
        given = str(path)
    elif way == "variable":
        monkeypatch.setenv("FEDPROIN_WEIGHTS", str(path))
    else:
        monkeypatch.setenv("PWD", str(tmp_path))
        given = path.name
    loaded = build_encoder("resnet18", image_size=32, pretrained=True, weights=given).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())


def test_weights_without_batch_counters_are_accepted(torchvision_network, tmp_path):
    state = {k: v for k, v in torchvision_network.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    build_encoder("resnet18", image_size=32, pretrained=True, weights=str(tmp_path / "old.pth"))


def refused(**options) -> str:
    with pytest.raises(SettingsError) as caught:
        build_encoder("resnet18", image_size=32, pretrained=True, **options)
    message = str(caught.value)
    assert message.endswith(".")
    assert "/" not in message
    return message


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"fc.weight": torch.ones(2)}, id="tensors are missing"),
        pytest.param({"conv1.weight": torch.ones(2)}, id="wrong shape"),
        pytest.param([1, 2], id="no state dict"),
        pytest.param({"state_dict": {}, 3: 4}, id="a checkpoint"),
    ],
)
def test_weights_of_another_network_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    assert "does not fit ResNet-18" in refused(weights=str(tmp_path / "w.pth"))


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02cos\nsystem\n(S'true'\ntR.", b"PK\x03\x04 no zip"])
def test_a_file_that_holds_no_weights_is_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert "cannot be read" in refused(weights=str(tmp_path / name))


def test_a_missing_file_is_refused(tmp_path):
    assert "does not exist" in refused(weights=str(tmp_path / "w.pth"))


def test_a_download_without_network_says_what_to_do(offline):
    assert refused() == (
        "ImageNet weights of ResNet-18 were asked for and could not be downloaded; give a local file by "
        "model.weights or FEDPROIN_WEIGHTS, or set model.pretrained to false."
    )


def test_only_the_full_width_has_imagenet_weights():
    assert "width 64" in refused(width=16)
