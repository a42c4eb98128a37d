import pytest
import torch

from fedproin.models.classifiers import LinearClassifier, ProjectionClassifier, PrototypeClassifier
from fedproin.models.encoders import build_encoder


def encoder():
    return build_encoder("resnet18", width=4, image_size=32)


def model(classes: int = 3, per_class: int = 2) -> PrototypeClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PrototypeClassifier(encoder(), classes, per_class)


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
    with pytest.raises(ValueError, match="at least"):
        model(classes, per_class)


def test_a_linear_head_with_and_without_bias_and_factor():
    z_BD = torch.randn(5, 32)
    plain, scaled = LinearClassifier(encoder(), 3), LinearClassifier(encoder(), 3, bias=False, scale=2.0)
    assert {name for name in plain.state_dict() if name.startswith("head")} == {"head.weight", "head.bias"}
    assert {name for name in scaled.state_dict() if name.startswith("head")} == {"head.weight"}
    torch.testing.assert_close(plain.logits(z_BD), z_BD @ plain.head.weight.T + plain.head.bias)
    torch.testing.assert_close(scaled.logits(z_BD), 2 * z_BD @ scaled.head.weight.T)
    images = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(plain.eval()(images), plain.logits(plain.encoder(images)))


@pytest.mark.parametrize("normalise", [False, True])
def test_a_projection_between_features_and_head(normalise):
    classifier, z_BD = ProjectionClassifier(encoder(), 3, 10, normalise), torch.randn(5, 32)
    q_BP = classifier.l2(classifier.l1(z_BD).clamp_min(0))
    q_BP = q_BP / q_BP.norm(dim=1, keepdim=True) if normalise else q_BP
    torch.testing.assert_close(classifier.project(z_BD), q_BP)
    torch.testing.assert_close(classifier.logits(z_BD), classifier.head(q_BP))
    assert classifier.project(z_BD[:1]).shape == (1, 10)  # one sample stays a batch


def test_a_head_on_the_features_sees_no_projection():
    classifier, z_BD = ProjectionClassifier(encoder(), 3, 10, head_on="features"), torch.randn(5, 32)
    torch.testing.assert_close(classifier.logits(z_BD), classifier.head(z_BD))


@pytest.mark.parametrize("build", [lambda e: LinearClassifier(e, 1), lambda e: ProjectionClassifier(e, 1, 8)])
def test_degenerate_one_class_is_refused(build):
    with pytest.raises(ValueError, match="at least 2 classes"):
        build(encoder())
