"""Local training of one round; no number is read from the device before an epoch ends, so a GPU never waits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedproin.data.sampling import epoch_batches
from fedproin.methods.base import Method, RoundContext, SiteResult, Tensors
from fedproin.seeds import derive_seed
from fedproin.training.batches import Augmentation, Part

OPTIMIZER = "optimizer."


@dataclass
class TrainingReport:
    """What a round of training was: its steps, images shown, and the mean of each loss term over every epoch."""

    steps: int = 0
    presentations: int = 0
    losses: dict[str, list[float]] = field(default_factory=dict)


def train_round(method: Method, model: nn.Module, part: Part, ctx: RoundContext) -> tuple[SiteResult, TrainingReport]:
    """Train `model` in place for the local epochs of one round."""
    training = ctx.settings.training
    augment = _augmentation(ctx, part, derive_seed(ctx.settings.seed, ctx.site, ctx.round, "augmentation"))
    method.begin_round(ctx, model, part)
    optimizer = torch.optim.Adam(method.parameter_groups(model, training.learning_rate))
    if training.optimizer_state == "persist" and ctx.memory is not None:
        _restore(optimizer, ctx.memory.tensors)
    report = TrainingReport()
    for ctx.epoch in range(training.local_epochs):
        batches = epoch_batches(
            part.labels,
            training.batch_size,
            training.sampler,
            training.epoch_length,
            ctx.generator("sampler"),
            training.steps_per_epoch,
        )
        _train_epoch(method, model, part, ctx, optimizer, augment, batches, report)
    result = method.end_round(ctx, model, part)
    if training.optimizer_state == "persist":
        result.remember.update(_optimizer_tensors(optimizer))
    return result, report


def _train_epoch(
    method: Method,
    model: nn.Module,
    part: Part,
    ctx: RoundContext,
    optimizer: torch.optim.Optimizer,
    augment: Augmentation | None,
    batches: list[Tensor],
    report: TrainingReport,
) -> None:
    sums: Tensors = {}
    for rows in batches:
        images, labels = part.batch(rows, augment)
        model.train(len(rows) > 1)  # BatchNorm cannot normalise a single sample by itself: running statistics then
        loss = method.loss(ctx, model, images, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for name, term in {"total": loss.total, **loss.terms}.items():
            sums[name] = sums.get(name, 0) + term.detach() * len(rows)
    shown = sum(len(rows) for rows in batches)
    if any(len(rows) == 1 for rows in batches) and "single_image_batch" not in ctx.notes:
        ctx.notes.append("single_image_batch")
    report.steps += len(batches)
    report.presentations += shown
    for name, value in sums.items():
        report.losses.setdefault(name, []).append(value.item() / shown)


def _augmentation(ctx: RoundContext, part: Part, seed: int) -> Augmentation | None:
    kind = ctx.settings.training.augmentation
    if kind == "none":
        return None
    from fedproin.data.augmentation import augmentation, class_probabilities, uniform_probabilities  # late: MONAI

    probabilities = class_probabilities if kind == "adaptive" else uniform_probabilities
    probability_C = probabilities(part.labels.numpy(), len(ctx.settings.data.classes))
    transform = augmentation(probability_C, ctx.settings.training.flip_probability)
    transform.set_random_state(seed=seed)
    return transform


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    state = optimizer.state_dict()["state"]
    return {f"{OPTIMIZER}{index}.{key}": value for index, entry in state.items() for key, value in entry.items()}


def _restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, Tensors] = {}
    for name, value in tensors.items():
        if name.startswith(OPTIMIZER):
            index, key = name.removeprefix(OPTIMIZER).split(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
