import pytest
import torch

from fedproin.models.classifiers import PrototypeClassifier
from fedproin.models.encoders import build_encoder


def model(classes: int = 3, per_class: int = 2) -> PrototypeClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PrototypeClassifier(build_encoder("resnet18", width=4, image_size=32), classes, per_class)


def test_forward_gives_the_distances_to_all_prototypes():
    classifier = model().eval()
    images = torch.randn(5, 3, 32, 32)
    dist_BCM = classifier(images)
    features = classifier.encoder(images)
    expected = (features[:, None, None] - classifier.prototypes).norm(dim=-1)
    torch.testing.assert_close(dist_BCM, expected)
    assert dist_BCM.shape == (5, 3, 2)


def test_state_names():
    names = model().state_dict().keys()
    assert "encoder.conv1.weight" in names
    assert {name for name in names if not name.startswith("encoder.")} == {"prototypes"}


def test_prototypes_are_drawn_from_a_standard_normal():
    prototypes = model(classes=50, per_class=10).prototypes
    assert prototypes.shape == (50, 10, 32)
    assert prototypes.mean().item() == pytest.approx(0, abs=0.03)
    assert prototypes.std().item() == pytest.approx(1, abs=0.03)


def test_building_depends_on_the_global_seed_alone():
    first, second = model().state_dict(), model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_distances_are_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        dist_BCM = model()(torch.randn(4, 3, 32, 32))
    assert dist_BCM.dtype == torch.float32
    dist_BCM.sum().backward()


@pytest.mark.parametrize(("classes", "per_class"), [(1, 1), (2, 0)])
def test_a_model_without_a_rival_or_a_prototype_is_refused(classes, per_class):
    with pytest.raises(ValueError, match="at least 2 classes"):
        model(classes, per_class)
