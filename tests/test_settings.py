import json

import pytest

from fedproin.errors import SettingsError
from fedproin.methods import METHODS, create_method
from fedproin.methods.fedproin import FedProInOptions
from fedproin.settings import Settings, load_settings, parse


def test_defaults_are_the_papers():
    """Section IV of the paper; E, batch, Adam and image size likewise; lambda_PCL and the margin from its code."""
    settings = Settings()
    assert (settings.federation.rounds, settings.federation.participation) == (50, 0.5)
    training = settings.training
    assert (training.local_epochs, training.batch_size, training.learning_rate) == (5, 128, 1e-4)
    assert (training.sampler, training.epoch_length) == ("class_balanced", "max_times_present")
    assert (training.augmentation, training.optimizer_state, training.bn_mode) == ("adaptive", "reset", "average")
    assert (settings.data.image_size, settings.data.split) == (128, (0.7, 0.1, 0.2))
    assert (settings.model.backbone, settings.model.width, settings.model.pretrained) == ("resnet18", 64, True)
    assert (settings.partition.alpha, settings.partition.minimum) == (0.5, 10)
    options = FedProInOptions()
    assert (options.prototypes_per_class, options.task_loss, options.distance, options.slope) == (
        1,
        "mce",
        "euclidean",
        1,
    )
    assert (options.lambda_fdl, options.lambda_pcl, options.pcl_margin, options.margin) == (1.0, 0.1, 0.5, 0.5)
    assert (options.fdl_reduction, options.fdl_reference_bn) == ("mean", "batch")
    assert (options.pcl_reduction, options.prev_max_age) == ("per_prototype", None)
    assert (options.influence_scope, options.influence_source) == ("true_class", "last_epoch")
    assert (options.prototype_init, options.prototype_merge) == ("normal", "nia")


REFUSALS = [
    ({"training": {"local_epoch": 3}}, "Unknown setting 'training.local_epoch': did you mean 'local_epochs'?"),
    ({"trainig": {}}, "Unknown setting 'trainig': did you mean 'training'?"),
    (
        {"federation": {"zzz": 1}},
        "Unknown setting 'federation.zzz': known are rounds, participation, quorum, deadline_seconds, validate_every, "
        "best_score, local_scores, prior_correction, max_step.",
    ),
    (
        {"training": {"local_epochs": 0}},
        "Setting 'training.local_epochs': input should be greater than or equal to 1, got 0.",
    ),
    ({"training": {"local_epochs": "3"}}, "Setting 'training.local_epochs': input should be a valid integer, got '3'."),
    (
        {"training": {"local_epochs": True}},
        "Setting 'training.local_epochs': input should be a valid integer, got True.",
    ),
    ({"training": {"local_epochs": 2.5}}, "Setting 'training.local_epochs': input should be a valid integer, got 2.5."),
    ({"training": {"learning_rate": 0}}, "Setting 'training.learning_rate': input should be greater than 0, got 0."),
    (
        {"training": {"learning_rate": float("inf")}},
        "Setting 'training.learning_rate': input should be a finite number, got inf.",
    ),
    (
        {"training": {"flip_probability": 1.5}},
        "Setting 'training.flip_probability': input should be less than or equal to 1, got 1.5.",
    ),
    (
        {"training": {"sampler": "balanced"}},
        "Setting 'training.sampler': input should be 'class_balanced' or 'shuffle', got 'balanced'.",
    ),
    (
        {"federation": {"participation": 1.2}},
        "Setting 'federation.participation': input should be less than or equal to 1, got 1.2.",
    ),
    ({"federation": {"quorum": 0}}, "Setting 'federation.quorum': input should be greater than or equal to 1, got 0."),
    ({"federation": None}, "Setting 'federation': input should be an object."),
    ({"data": {"split": [0.7, 0.2, 0.2]}}, "Setting 'data': split must add up to 1, got 1.1."),
    ({"data": {"split": [0.7, 0.3]}}, None),
    ({"data": {"split": [0.7, 0.3, 0]}}, "Setting 'data.split.2': input should be greater than 0, got 0."),
    ({"data": {"classes": ["a", "b", "a"]}}, "Setting 'data': classes must be different from each other."),
    ({"data": {"classes": ["a"]}}, "Setting 'data': classes must name at least two classes, got one."),
    ({"data": {"classes": "ab"}}, None),
    ({"data": {"image_size": 8}}, "Setting 'data.image_size': input should be greater than or equal to 16, got 8."),
    ({"data": {"std": [0.1, 0.0, 0.1]}}, "Setting 'data.std.1': input should be greater than 0, got 0.0."),
    ({"run": "../elsewhere"}, None),
    ({"run": ""}, None),
    ({"seed": -1}, "Setting 'seed': input should be greater than or equal to 0, got -1."),
    ({"seed": None}, "Setting 'seed': input should be a valid integer."),
    ({"method": "fedproin"}, None),
]


@pytest.mark.parametrize(("values", "sentence"), REFUSALS)
def test_refusals(values, sentence):
    with pytest.raises(SettingsError) as error:
        parse(Settings, values)
    message = str(error.value)
    assert message == sentence or sentence is None, message
    assert message.endswith((".", "?"))
    assert "\n" not in message
    assert "pydantic" not in message


METHOD_REFUSALS = [
    ({"name": "fedpron"}, "Unknown method 'fedpron': did you mean 'fedproin'?"),
    ({"name": ["x"]}, f"Unknown method ['x']: known are {', '.join(METHODS)}."),
    ({"name": None}, f"Unknown method None: known are {', '.join(METHODS)}."),
    ({"prototypes_per_clas": 2}, "Unknown setting 'method.prototypes_per_clas': did you mean 'prototypes_per_class'?"),
    (
        {"prototypes_per_class": 0},
        "Setting 'method.prototypes_per_class': input should be greater than or equal to 1, got 0.",
    ),
    ({"lambda_fdl": -1}, "Setting 'method.lambda_fdl': input should be greater than or equal to 0, got -1."),
    ({"pcl_margin": 2.5}, "Setting 'method.pcl_margin': input should be less than or equal to 2, got 2.5."),
    ({"slope": 0}, "Setting 'method.slope': input should be greater than 0, got 0."),
    (
        {"task_loss": "ce"},
        "Setting 'method.task_loss': input should be 'mce', 'mcl' or 'gmcl', got 'ce'.",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), METHOD_REFUSALS)
def test_refusals_of_a_methods_options(options, sentence):
    with pytest.raises(SettingsError) as error:
        create_method(parse(Settings, {"method": options}))
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", [None, "a-1", "A.b_c", "x" * 64])
def test_names_of_runs(name):
    assert parse(Settings, {"run": name} if name else {}).run == (name or "fedproin")


def test_what_json_cannot_tell_apart_is_the_same_setting():
    whole, real = ({"training": {"learning_rate": value}, "federation": {"participation": value}} for value in (1, 1.0))
    assert parse(Settings, whole) == parse(Settings, real)
    assert parse(Settings, whole).digest() == parse(Settings, real).digest()


def test_digest_tells_every_setting_apart():
    changes = [
        {},
        {"run": "other"},
        {"seed": 1},
        {"data": {"classes": ["a", "b"]}},
        {"data": {"classes": ["b", "a"]}},
        {"training": {"threads": 2}},
        {"method": {"name": "fedproin", "prototypes_per_class": 2}},
    ]
    assert len({parse(Settings, change).digest() for change in changes}) == len(changes)


def test_digest_does_not_depend_on_the_order_of_keys():
    one = {"seed": 1, "method": {"name": "fedproin", "slope": 2.0}}
    other = {"method": {"slope": 2.0, "name": "fedproin"}, "seed": 1}
    assert parse(Settings, one).digest() == parse(Settings, other).digest()


def test_settings_read_from_a_record_have_the_same_digest(make_settings):
    from dataclasses import asdict

    settings = make_settings(data={"classes": ["a", "b"], "mean": [0.1, 0.2, 0.3]})
    assert parse(Settings, json.loads(json.dumps(asdict(settings)))).digest() == settings.digest()


def test_classes_of_a_table_change_nothing_else(make_settings):
    settings = make_settings(seed=5)
    assert settings.with_classes(("a", "b")) == make_settings(seed=5, data={"classes": ["a", "b"]})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "The job has no config/settings.json; copy one from jobs/fedproin and edit it."),
        (b"[1]", 'settings.json must hold one JSON object, such as {"seed": 0}.'),
        (b"null", 'settings.json must hold one JSON object, such as {"seed": 0}.'),
        (b'{"seed": 1,}', None),
        (b"\xff\xfe", None),
    ],
)
def test_files_that_are_no_settings(tmp_path, content, sentence):
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    assert str(error.value) == sentence or (sentence is None and "settings.json is not valid JSON" in str(error.value))


def test_a_file_names_only_what_differs(tmp_path):
    (tmp_path / "settings.json").write_text('{"training": {"batch_size": 7}}')
    settings = load_settings(tmp_path / "settings.json")
    assert settings.training.batch_size == 7
    assert settings == parse(Settings, {"training": {"batch_size": 7}})
    assert settings.training.local_epochs == Settings().training.local_epochs


def test_a_prior_correction_of_a_model_that_knows_the_frequencies_is_refused():
    values = {"training": {"sampler": "shuffle"}, "federation": {"prior_correction": True}}
    with pytest.raises(SettingsError, match=r"prior_correction needs training\.sampler class_balanced"):
        parse(Settings, values)


def test_small_maps_in_bfloat16_are_refused():
    values = {"data": {"image_size": 16}, "training": {"precision": "bfloat16"}}
    with pytest.raises(SettingsError, match="at least 17"):
        parse(Settings, values)
    parse(Settings, values | {"data": {"image_size": 17}})
