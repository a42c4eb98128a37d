"""Numbers are those of spec/vectors.json (group balancefl), which agree with the published loss to 1e-6."""

import pytest
import torch

from fedproin.maths.balance import absent_distillation, present_cross_entropy, present_entropy, within_class_noise

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 1.0, 2.0, 0.5]], dtype=torch.float64)
NOISY = torch.tensor([[1.5, 1.0, 0.0, -1.0], [0.0, 1.5, 2.0, 0.5]], dtype=torch.float64)
TEACHER = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.5, -0.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("present", "task", "inheritance", "entropy", "total"),
    [
        ([1, 1, 0, 0], 0.33774513108142956, 0.6664369131463442, 1.1644062177764358, 1.0018532317922209),
        ([1, 1, 1, 0], 0.8295437624893595, 0.0, 1.6647911636798778, 0.8262141801619997),
        ([1, 1, 1, 1], 0.9117535639159098, 0.0, 2.057303965468045, 0.9076389559849737),
    ],
    ids=["two absent", "one absent: its softmax is constant", "none absent"],
)
def test_the_three_terms(present, task, inheritance, entropy, total):
    present, logits = torch.tensor(present, dtype=torch.bool), LOGITS.clone().requires_grad_()
    terms = (
        present_cross_entropy(NOISY, LABELS, present),
        absent_distillation(logits, TEACHER, ~present, 2.0),
        present_entropy(logits, present).sum(),
    )
    assert [term.item() for term in terms] == pytest.approx([task, inheritance, entropy], abs=1e-6)
    assert (terms[0] + terms[1] - 0.002 * terms[2]).item() == pytest.approx(total, abs=1e-6)
    gradient = torch.autograd.grad(terms[1], logits, retain_graph=True)[0]
    assert bool(gradient.abs().sum() > 1e-12) == (inheritance > 0)
    assert torch.autograd.grad(terms[2], logits)[0].isfinite().all()


def test_degenerate_one_present_class_costs_nothing():
    logits = LOGITS.clone().requires_grad_()
    present = torch.tensor([True, False, False, False])
    loss = present_cross_entropy(logits, torch.tensor([0, 0]), present) - present_entropy(logits, present).sum()
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().max() == 0
    assert absent_distillation(LOGITS, TEACHER, ~present).item() > 0


def test_noise_has_the_mean_covariance_inside_the_classes():
    g = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 40 + [2] * 10 + [3])
    z = torch.randn(51, 3, generator=g) * torch.tensor([1.0, 2.0, 0.0]) + 10.0 * labels.unsqueeze(1)
    covariance = sum(len(own) / 51 * own.T.cov() for own in (z[:40], z[40:50]))  # a single sample has none
    noise = within_class_noise(z, labels, 200_000, g)
    assert noise.dtype == z.dtype
    assert noise.shape == (200_000, 3)
    torch.testing.assert_close(noise.mean(dim=0), torch.zeros(3), atol=0.02, rtol=0)
    torch.testing.assert_close(noise.T.cov(), covariance, atol=0.05, rtol=0.02)
    assert noise[:, 2].abs().max() < 1e-5


def test_degenerate_single_samples_make_no_noise():
    noise = within_class_noise(torch.randn(3, 4), torch.tensor([0, 1, 4]), 5, torch.Generator())
    assert noise.tolist() == torch.zeros(5, 4).tolist()
