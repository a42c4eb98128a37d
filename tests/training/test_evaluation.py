from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproin.methods import create_method
from fedproin.methods.base import RoundContext
from fedproin.training.batches import Part
from fedproin.training.evaluation import confusion, log_frequencies

CPU = torch.device("cpu")


@pytest.fixture
def scored(make_settings):
    settings = make_settings(data={"classes": ["a", "b", "c"]})
    images = np.random.default_rng(0).integers(0, 256, (11, 16, 16, 3), dtype=np.uint8)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 2])
    part = Part(images, np.arange(11), labels, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), 4, CPU)
    torch.manual_seed(1)
    method = create_method(settings)
    return method, method.build("site-1"), part, RoundContext(settings, 0, CPU)


def scoring(scores):
    return lambda ctx, model, images: torch.tensor(scores).expand(len(images), -1)


def test_rows_are_true_classes(scored, monkeypatch):
    method, model, part, ctx = scored
    monkeypatch.setattr(method, "scores", scoring([0.0, 1.0, 0.0]))
    counts = confusion(method, model, part, ctx)
    assert counts.tolist() == [[0, 5, 0], [0, 3, 0], [0, 3, 0]]
    assert counts.dtype == torch.int64


def test_equals_counting_one_by_one_and_ignores_the_batch_size(scored):
    method, model, part, ctx = scored
    model.eval()
    with torch.no_grad():
        predicted = torch.cat(
            [method.scores(ctx, model, part.batch(torch.tensor([row]))[0]) for row in range(11)]
        ).argmax(dim=1)
    expected = torch.zeros(3, 3, dtype=torch.int64)
    for true, guess in zip(part.labels, predicted, strict=True):
        expected[true, guess] += 1
    model.train()  # scoring must not use the batch's statistics
    for size in (1, 4, 64):
        assert torch.equal(confusion(method, model, replace(part, batch_size=size), ctx), expected)


def test_changes_nothing_in_the_model(scored):
    method, model, part, ctx = scored
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    confusion(method, model.train(), part, ctx)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not ctx.counters


def test_degenerate_empty_part(scored):
    method, model, part, ctx = scored
    empty = replace(part, indices=np.array([], dtype=np.int64), labels=torch.zeros(0, dtype=torch.int64))
    assert confusion(method, model, empty, ctx).tolist() == [[0] * 3] * 3


def test_equal_scores_go_to_the_first_class(scored, monkeypatch):
    method, model, part, ctx = scored
    monkeypatch.setattr(method, "scores", scoring([0.0, 2.0, 2.0]))
    assert confusion(method, model, part, ctx).sum(dim=0).tolist() == [0, 11, 0]


def test_frequencies_count_every_class_once_more():
    labels = torch.tensor([0, 0, 0, 2])
    assert log_frequencies(labels, 3).exp().tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])
    assert log_frequencies(labels[:0], 3).exp().tolist() == pytest.approx([1 / 3] * 3)


def test_a_prior_decides_where_the_scores_are_closer_than_it(scored, monkeypatch):
    """Bayes' rule: a class 1.5 logits ahead wins against one twice as frequent, and not against one ten times."""
    method, model, part, ctx = scored
    monkeypatch.setattr(method, "scores", scoring([0.0, 1.5, -9.0]))
    for prior, winner in (([2.0, 1.0, 1.0], 1), ([10.0, 1.0, 1.0], 0)):
        counts = confusion(method, model, part, ctx, torch.tensor(prior).log())
        assert counts[:, winner].sum() == 11
