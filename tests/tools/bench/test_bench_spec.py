"""Specs: what they mean, and one sentence for each mistake."""

import pytest

from fedproin.errors import SettingsError
from fedproin.tools.bench.spec import load_spec


def test_settings_are_the_base_changed_by_the_row(write_spec):
    more = '[rows.long]\nmethod = { name = "fedproin" }\ntraining = { local_epochs = 7 }\nmodel = { width = 8 }\n'
    spec = load_spec(write_spec(more=more))
    settings = spec.settings("long", "dirichlet", 3)
    assert (settings.run, settings.seed) == ("long", 3)
    assert (settings.training.local_epochs, settings.training.batch_size) == (7, 32)
    assert (settings.model.width, settings.model.pretrained) == (8, False)
    assert (settings.partition.kind, settings.partition.minimum, settings.data.image_size) == ("dirichlet", 4, 16)
    assert spec.settings("fedproin", "iid", 0).training.local_epochs == 1
    assert spec.settings("no_fdl", "iid", 0, 3).method == {
        "name": "fedproin",
        "lambda_fdl": 0,
        "prototypes_per_class": 3,
    }


def test_labels_have_defaults(write_spec):
    spec = load_spec(write_spec(('kind = "iid"', 'kind = "iid"\nlabel = "even"')))
    assert [spec.label(row) for row in spec.rows] == ["FedProIn", "no_fdl"]
    assert [partition.label for partition in spec.partitions.values()] == ["even", "Dirichlet 0.5"]


@pytest.mark.parametrize(
    ("replacement", "sentence"),
    [
        (("seeds = [0, 1]", "seed = [0]"), "Unknown setting 'spec.seed': did you mean 'seeds'?"),
        (("sites = 2", ""), "Setting 'spec.sites': field required."),
        (("sites = 2", "sites = 1"), "Setting 'spec.sites': input should be greater than or equal to 2, got 1."),
        (('"tiny"', '"../x"'), None),
        (("seeds = [0, 1]", "seeds = [0, 0]"), "Setting 'spec.seeds': name each seed once."),
        (("seeds = [0, 1]", "seeds = []"), None),
        (("seeds = [0, 1]", "seeds = [1.5]"), "Setting 'spec.seeds.0': input should be a valid integer, got 1.5."),
        (("seeds = [0, 1]", "seeds = [2026-01-01]"), None),
        (("seeds = [0, 1]", 'reference = "fedavg"'), "Setting 'spec.reference': there is no row 'fedavg'; known are "
         "fedproin, no_fdl."),
        (("seeds = [0, 1]", 'model = "first"'), None),
        (("local_epochs = 1", "local_epoch = 1"), "Unknown setting 'settings.training.local_epoch': did you mean "
         "'local_epochs'?"),
        (("local_epochs = 1", "local_epochs = 0"), None),
        (("[settings]", "[settings]\nseed = 3"), None),
        (("[settings]", "[settings]\nmethod = {}"), None),
        (('kind = "iid"', 'kind = "idd"'), None),
        (('kind = "iid"', 'kind = "iid"\nlabel = 3'), "Setting 'partitions.iid.label': input should be a text."),
        (("minimum = 4", "minimun = 4"), "Unknown setting 'partitions.dirichlet.minimun': did you mean 'minimum'?"),
        (("[rows.no_fdl]", '[rows."no/fdl"]'), "The row 'no/fdl' cannot be a folder: use up to 64 letters, digits, "
         "dots, dashes and underscores."),
        (("[partitions.iid]", '[partitions."."]'), None),
        (('group = "ablation"', 'group = "other"'), None),
        (('group = "ablation"', "seed = 1"), None),
        (('group = "ablation"', "training = { epochs = 1 }"), "Unknown setting 'rows.no_fdl.training.epochs': did "
         "you mean 'local_epochs'?"),
        (('{ name = "fedproin", lambda_fdl = 0 }', "{}"), "Setting 'rows.no_fdl.method': it needs a name, such as "
         "fedavg."),
        (('method = { name = "fedproin", lambda_fdl = 0 }', ""), "Setting 'rows.no_fdl.method': field required."),
        (("sites = 2", "sites = 2\nsites = 3"), None),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(write_spec, replacement, sentence):
    with pytest.raises(SettingsError) as error:
        load_spec(write_spec(replacement))
    message = str(error.value)
    assert sentence in (None, message)
    assert "\n" not in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ('[sweep]\nrows = ["fedproin"]\n', "Setting 'spec.sweep': it needs both, rows and prototypes_per_class."),
        ("[sweep]\nprototypes_per_class = [1]\n", "Setting 'spec.sweep': it needs both, rows and "
         "prototypes_per_class."),
        ('[sweep]\nprototypes_per_class = [0]\nrows = ["fedproin"]\n', None),
        ('[sweep]\nprototypes_per_class = [1]\nrows = ["moon"]\n', "Setting 'spec.sweep.rows': there is no row 'moon'; "
         "known are fedproin, no_fdl."),
        ("[sweep]\nrow = []\n", "Unknown setting 'spec.sweep.row': did you mean 'rows'?"),
        ("[claims]\nabove = 1.0\n", "Unknown setting 'spec.claims.above': did you mean 'above_fedavg'?"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_rest_is_one_sentence(write_spec, more, sentence):
    with pytest.raises(SettingsError) as error:
        load_spec(write_spec(more=more))
    assert sentence in (None, str(error.value))


def test_a_file_that_is_not_there_or_no_toml(tmp_path):
    with pytest.raises(SettingsError, match=r"There is no spec x\.toml"):
        load_spec(tmp_path / "x.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_spec(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load_spec(tmp_path / "x.toml")
