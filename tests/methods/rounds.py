"""A round of a method by hand, on random pictures, without a federation around it."""

import torch
from torch import Tensor, nn

from fedproin.methods.base import LossTerms, Method, RoundContext

LABELS = torch.tensor([0, 0, 1, 2, 1, 0, 2, 1])


class Pictures:
    """Training data of a site, in batches of four."""

    def __init__(self, labels: Tensor, seed: int = 0) -> None:
        self.labels = labels
        self.images = torch.randn(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        self.images += labels.view(-1, 1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def clean_batches(self):
        return zip(self.images.split(4), self.labels.split(4), strict=True)


def step(method: Method, model: nn.Module, ctx: RoundContext, data: Pictures, learning_rate: float = 0.1) -> LossTerms:
    """One step of plain gradient descent on all pictures; parameters without gradient stay."""
    loss = method.loss(ctx, model, data.images, data.labels)
    loss.total.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= learning_rate * parameter.grad
            parameter.grad = None
    return loss


def gradient(term: Tensor, model: nn.Module) -> float:
    """Norm of a term's gradient over all parameters; 0 when it reaches none."""
    if not term.requires_grad:
        return 0.0
    parts = torch.autograd.grad(term, list(model.parameters()), retain_graph=True, allow_unused=True)
    return float(sum(part.norm().item() ** 2 for part in parts if part is not None) ** 0.5)


def features(method: Method, model: nn.Module, data: Pictures) -> Tensor:
    """Encoder features in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return model.encoder(data.images)
