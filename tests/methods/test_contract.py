"""What holds for every method: two rounds of three sites, and no baseline is another one in disguise."""

import dataclasses
from typing import get_args, get_type_hints

import pytest
import torch

from fedproin.methods import METHODS, create_method
from fedproin.methods.base import initial_model
from fedproin.seeds import derive_seed

every_method = pytest.mark.parametrize("name", METHODS)
PERSONAL = ("solo", "fedproto", "fedtgp")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def outcome(federation):
    record = federation.record
    sites = [[(s.status, s.reason, s.losses, s.steps) for s in past.sites.values()] for past in record.rounds]
    return sites, record.last.confusion, record.best.confusion, record.best.version


@every_method
def test_two_rounds_train_every_participant(federate, name):
    record = federate(name).record
    participants = 1 if name == "central" else 3
    for past in record.rounds:
        assert past.counted
        assert len(past.participants) == participants
        assert [past.sites[site].status for site in past.participants] == ["trained"] * participants
        assert all(past.sites[site].steps > 0 for site in past.participants)
    assert record.method == name
    assert sum(map(sum, record.last.confusion)) > 0


@every_method
def test_a_new_process_for_every_task_gives_the_same_bits(federate, name):
    """And so does the same seed, and another order of arrival."""
    one, other = federate(name), federate(name, fresh=True)
    assert same(one.model, other.model)
    assert one.kept.keys() == other.kept.keys()
    assert all(same(one.kept[site], other.kept[site]) for site in one.kept)
    assert outcome(one) == outcome(other)


@every_method
def test_every_parameter_is_trained_and_none_twice(make_settings, name):
    method = create_method(make_settings(data={"classes": ["a", "b", "c"]}, method={"name": name}))
    model = method.build("site-1")
    given = [parameter for group in method.parameter_groups(model, 0.1) for parameter in group["params"]]
    assert len(given) == len(list(model.parameters()))
    assert {id(parameter) for parameter in given} == {id(parameter) for parameter in model.parameters()}


@every_method
def test_all_methods_and_sites_begin_with_the_same_encoder(make_settings, name):
    settings = make_settings(data={"classes": ["a", "b", "c"]}, method={"name": name})
    torch.manual_seed(5)
    models = [initial_model(create_method(settings), site) for site in (None, "site-1", "site-2")]
    torch.manual_seed(derive_seed(settings.seed, "initial model"))
    encoder = create_method(settings).build_encoder(pretrained=False).state_dict()
    assert all(same(model.encoder.state_dict(), encoder) for model in models)
    assert all(same(model.state_dict(), models[0].state_dict()) for model in models)


@every_method
def test_pretrained_weights_are_read_where_the_first_model_matters(make_settings, name, monkeypatch):
    from fedproin.methods import base

    asked = []

    def build_encoder(backbone, *, pretrained, **others):
        asked.append(pretrained)
        return built(backbone, pretrained=False, **others)

    built = base.build_encoder
    monkeypatch.setattr(base, "build_encoder", build_encoder)
    settings = make_settings(data={"classes": ["a", "b"]}, model={"pretrained": True}, method={"name": name})
    method = create_method(settings)
    initial_model(method, None, pretrained=method.scored == "global")  # as the server does
    initial_model(method, "site-1", pretrained=method.scored == "local")  # as a site does
    assert asked == [name not in PERSONAL, name in PERSONAL]


@every_method
def test_options_have_defaults_and_the_methods_name(make_settings, name):
    method = create_method(make_settings(method={"name": name}))
    assert dataclasses.asdict(type(method.options)()) == dataclasses.asdict(method.options)
    assert get_args(get_type_hints(type(method.options))["name"]) == (name,)


# in disguise

OWN_TERMS = {
    "balancefl": ("inheritance", "entropy"),
    "fedplvm": ("contrast", "correction"),
    "fedproc": ("contrast",),
    "fedproin": ("fdl", "pcl"),
    "fedproto": ("prototype",),
    "fedprox": ("proximal",),
    "fedtgp": ("prototype",),
    "moon": ("contrast",),
}
FROM_THE_FIRST_ROUND = {"inheritance", "entropy", "fdl", "proximal"}


@pytest.mark.parametrize("name", OWN_TERMS)
def test_its_own_terms_are_positive_with_a_gradient_once_their_state_exists(federate, name):
    run = federate(name, fresh=True)
    for term in OWN_TERMS[name]:
        first, second = ([site.losses for site in past.sites.values()] for past in run.record.rounds)
        assert all(term in losses for losses in second)
        assert max(losses[term][-1] for losses in second) > 0
        assert run.gradients[1, term] > 0
        assert all((term in losses) == (term in FROM_THE_FIRST_ROUND) for losses in first)


@pytest.mark.parametrize(("name", "option"), [("fedprox", "mu"), ("fedplvm", "weight")])
def test_with_weight_zero_it_is_fedavg_bit_for_bit_and_by_default_it_is_not(federate, name, option):
    fedavg, off, on = federate("fedavg").model, federate(name, **{option: 0}).model, federate(name).model
    assert all(torch.equal(off[tensor], fedavg[tensor]) for tensor in fedavg)
    assert not torch.equal(on["encoder.conv1.weight"], fedavg["encoder.conv1.weight"])


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_with_weight_zero_it_is_solo_bit_for_bit_and_by_default_it_is_not(federate, name):
    solo, off, on = federate("solo").kept, federate(name, weight=0).kept, federate(name).kept
    for site in solo:
        assert same(off[site], solo[site])
        assert not torch.equal(on[site]["encoder.conv1.weight"], solo[site]["encoder.conv1.weight"])


@pytest.mark.parametrize(
    ("name", "without"), [("moon", {"mu": 0}), ("fedproc", {"schedule_rounds": 1}), ("balancefl", {"weight": 0})]
)
def test_its_term_changes_the_merged_model(federate, name, without):
    on, off = federate(name).model, federate(name, **without).model
    assert not torch.equal(on["encoder.conv1.weight"], off["encoder.conv1.weight"])
    assert not torch.equal(on["encoder.conv1.weight"], federate("fedavg").model["encoder.conv1.weight"])


def test_sites_without_a_federation_part(federate):
    solo, fedavg = federate("solo"), federate("fedavg")
    weights = [solo.kept[site]["encoder.conv1.weight"] for site in solo.kept]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    assert not torch.equal(weights[0], fedavg.model["encoder.conv1.weight"])
    first, other = (run.record.rounds[0].sites["site-2"].losses for run in (solo, fedavg))
    assert first == other  # the first round of a site is the same


# messages: names, types and axes of what travels beside the model (spec/methods.md 1.2), after the first round

F, D, P = torch.float32, torch.float64, 256
ENCODER = {"encoder.conv1.weight"}
MESSAGES = {
    "solo": (set(), {}, {}),
    "fedavg": ({"head.weight", "head.bias"}, {}, {}),
    "fedprox": ({"head.weight", "head.bias"}, {}, {}),
    "central": ({"head.weight", "head.bias"}, {}, {}),
    "balancefl": ({"head.weight"}, {}, {}),
    "moon": ({f"{layer}.{kind}" for layer in ("l1", "l2", "head") for kind in ("weight", "bias")}, {}, {}),
    "fedproc": (
        {f"{layer}.{kind}" for layer in ("l1", "l2", "head") for kind in ("weight", "bias")},
        {"centres": (F, (7, P)), "mask": (torch.bool, (7,))},
        {"class_sum": ("float64", (7, P)), "class_count": ("int64", (7,))},
    ),
    "fedproto": (
        set(),
        {"protos": (F, (7, 32)), "mask": (torch.bool, (7,))},
        {"protos": ("float32", (7, 32)), "class_count": ("int64", (7,))},
    ),
    "fedtgp": (
        set(),
        {"protos": (F, (7, 32))},
        {"protos": ("float32", (7, 32)), "mask": ("bool", (7,))},
    ),
    "fedplvm": (
        {"head.weight", "head.bias"},
        {"clusters": (F, (None, 32)), "cluster_class": (torch.int64, (None,))},
        {"clusters": ("float32", ("clusters", 32)), "cluster_class": ("int64", ("clusters",))},
    ),
    "fedproin": ({"prototypes"}, {}, {"influence": ("int64", (7, 1))}),
}


@every_method
def test_messages_hold_what_the_specification_says_and_nothing_else(federate, make_settings, name):
    model, down, up = MESSAGES[name]
    public = federate(name).model
    others = {tensor for tensor in public if not tensor.startswith("encoder.")}
    assert others == model | down.keys()
    assert bool(ENCODER & public.keys()) == (name not in PERSONAL)
    for tensor, (dtype, shape) in down.items():
        assert public[tensor].dtype == dtype
        assert all(want in (None, have) for want, have in zip(shape, public[tensor].shape, strict=True))
    method = create_method(make_settings(data={"classes": list("abcdefg")}, method={"name": name}))
    extras = method.extras(initial_model(method))
    assert {extra: (spec.dtype, spec.shape) for extra, spec in extras.items()} == up


@pytest.mark.parametrize("name", PERSONAL)
def test_before_the_first_round_a_personal_method_sends_nothing(make_settings, name):
    method = create_method(make_settings(data={"classes": ["a", "b"]}, method={"name": name}))
    model = initial_model(method)
    assert method.initial(model).public == {}
    assert method.shared_names(model) == set()
    assert method.local_names(model) == set(model.state_dict())


# settings of training that every method must stand


@every_method
def test_local_batchnorm_kept_optimizers_and_steps_of_equal_number(federate, name):
    training = {"bn_mode": "local", "optimizer_state": "persist", "steps_per_epoch": 2, "local_epochs": 2}
    record = federate(name, training=training).record
    steps = {past.sites[site].steps for past in record.rounds for site in past.participants}
    assert steps == {4}
