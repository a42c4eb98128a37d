"""A round that has begun, and whole federations that several tests look at, each run once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from rounds import LABELS, Pictures, gradient

from fedproin.data.location import locate
from fedproin.federation.local_engine import run_local
from fedproin.federation.opening import open_server
from fedproin.federation.records import RunRecord
from fedproin.federation.site import Site
from fedproin.methods import create_method
from fedproin.methods.base import RoundContext, initial_model
from fedproin.settings import Settings
from fedproin.tensor_file import load_tensors
from fedproin.training.device import prepare_device


@pytest.fixture
def begin_round(make_settings):
    """A method by name, its first model and a round of site-1 that has begun."""

    def make(name, round_=0, memory=None, message=None, training=None, data=None, rounds=10, **options):
        settings = make_settings(
            data={"classes": ["a", "b", "c"]},
            training=training or {},
            federation={"rounds": rounds},
            method={"name": name, **options},
        )
        method = create_method(settings)
        model = initial_model(method, "site-1")
        ctx = RoundContext(settings, round_, torch.device("cpu"), memory=memory, site="site-1", message=message or {})
        method.begin_round(ctx, model, data or Pictures(LABELS))
        return method, model.train(), ctx

    return make


@dataclass
class Federation:
    """What two rounds of three sites left.

    Attributes:
        model: the public tensors of the last model.
        kept: the newest state of each site.
        gradients: norm of the gradient of each term in each round, the largest of all sites and batches.
    """

    record: RunRecord
    model: dict[str, torch.Tensor]
    kept: dict[str, dict[str, torch.Tensor]]
    gradients: dict[tuple[int, str], float] = field(default_factory=dict)


@pytest.fixture(scope="session")
def federate(make_settings, tmp_path_factory) -> Callable[..., Federation]:
    """Run a method in the local engine; `fresh` makes a new `Site` for every task, as FLARE with `-t 1` does."""
    runs: dict[str, Federation] = {}

    def make(name: str, fresh: bool = False, training: dict[str, Any] | None = None, **options: Any) -> Federation:
        key = repr((name, fresh, training, options))
        if key not in runs:
            settings = make_settings(
                training={"batch_size": 16, **(training or {})},
                federation={"rounds": 2, "participation": 1.0},
                method={"name": name, **options},
            )
            directory = tmp_path_factory.mktemp(name)
            runs[key] = (_with_new_sites if fresh else _local)(settings, directory)
        return runs[key]

    return make


def _local(settings: Settings, directory: Path) -> Federation:
    return _collect(run_local(settings, 3, directory, lambda line: None), directory)


def _with_new_sites(settings: Settings, directory: Path) -> Federation:
    location = locate(settings, simulated=True, site_root=directory)
    prepare_device(settings.training)
    names = ["site-1", "site-2", "site-3"]
    server = open_server(settings, names, location, directory / "fedproin", lambda line: None)
    gradients: dict[tuple[int, str], float] = {}

    def exchange(task, targets):
        for name in reversed(targets):  # the order of arrival is no matter either
            site = Site(name, settings, location, directory / name / "fedproin")
            _watch(site, gradients)
            server.accept(name, site.run(task))
        return {}

    made = _collect(server.run(exchange), directory)
    made.gradients = gradients
    return made


def _watch(site: Site, gradients: dict[tuple[int, str], float]) -> None:
    """Measure the gradient of every term on the way."""
    loss = site.method.loss

    def watched(ctx, model, images, labels):
        made = loss(ctx, model, images, labels)
        for name, term in made.terms.items():
            key = (ctx.round, name)
            gradients[key] = max(gradients.get(key, 0.0), gradient(term, model))
        return made

    site.method.loss = watched  # type: ignore[method-assign]


def _collect(record: RunRecord, directory: Path) -> Federation:
    kept = {}
    for name in record.site_names:
        states = sorted((directory / name / "fedproin" / "state").rglob("round-*.safetensors"))
        kept[name] = load_tensors(states[-1])[0] if states else {}
    return Federation(record, load_tensors(directory / "fedproin" / "last_model.safetensors")[0], kept)
