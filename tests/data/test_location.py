import json

import pytest

from fedproin.data.cache import default_directory
from fedproin.data.location import locate
from fedproin.errors import DataError, SettingsError


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site's FLARE workspace, in a process whose user typed the command elsewhere."""
    (tmp_path / "kit" / "local").mkdir(parents=True)
    (tmp_path / "typed-here").mkdir()
    (tmp_path / "flare-is-here").mkdir()
    monkeypatch.delenv("FEDPROIN_DATA", raising=False)
    monkeypatch.setenv("PWD", str(tmp_path / "typed-here"))
    monkeypatch.chdir(tmp_path / "flare-is-here")
    return tmp_path / "kit"


def configure(site, data):
    (site / "local" / "fedproin.json").write_text(json.dumps({"data": data}))


def test_site_file_beats_variable_beats_job(site, make_settings, monkeypatch):
    settings = make_settings(data={"path": "/from/job"})
    assert str(locate(settings, False, site).source) == "/from/job"
    monkeypatch.setenv("FEDPROIN_DATA", "/from/variable")
    assert str(locate(settings, False, site).source) == "/from/variable"
    configure(site, "/from/site")
    assert str(locate(settings, False, site).source) == "/from/site"
    assert str(locate(settings, True, site).source) == "/from/site"


def test_relative_paths_start_where_the_command_was_typed(site, make_settings, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPROIN_DATA", "images/table.csv")
    assert locate(make_settings(), True, site).source == tmp_path / "typed-here" / "images" / "table.csv"
    monkeypatch.delenv("FEDPROIN_DATA")
    assert locate(make_settings(data={"path": "x.zip"}), True, site).source == tmp_path / "typed-here" / "x.zip"
    configure(site, "y")
    assert locate(make_settings(), False, site).source == tmp_path / "typed-here" / "y"


def test_home_is_expanded(site, make_settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert locate(make_settings(data={"path": "~/data"}), True, site).source == tmp_path / "home" / "data"


def test_without_pwd_the_working_directory_counts(site, make_settings, monkeypatch):
    monkeypatch.delenv("PWD")
    source = locate(make_settings(data={"path": "x"}), True, site).source
    assert source.absolute() == site.parent / "flare-is-here" / "x"


def test_an_empty_variable_is_none(site, make_settings, monkeypatch):
    monkeypatch.setenv("FEDPROIN_DATA", "")
    assert locate(make_settings(data={"path": "/job"}), True, site).source.name == "job"


def test_only_a_simulation_falls_back_to_synthetic_pictures(site, make_settings):
    assert locate(make_settings(), True, site).synthetic
    with pytest.raises(DataError) as error:
        locate(make_settings(), False, site)
    assert str(error.value) == (
        'This site has no data configured; name its table in local/fedproin.json, such as {"data": "/data"}.'
    )


def test_a_rehearsal_reads_no_real_data(site, make_settings, monkeypatch):
    configure(site, "/real/data")
    monkeypatch.setenv("FEDPROIN_DATA", "/real/data")
    location = locate(make_settings(data={"synthetic": True}), False, site)
    assert location.source is None
    assert location.synthetic


def test_a_hospitals_decoded_pictures_stay_in_its_own_directory(site, make_settings):
    settings = make_settings(data={"path": "/data"})
    assert locate(settings, False, site).cache == site / "fedproin" / "cache"
    assert locate(settings, True, site).cache == default_directory()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"data": 3}', '{"data": ""}', '{"data": null}', '"x"', "{", "\x00"]
)
def test_a_site_file_that_says_nothing_is_refused(site, make_settings, content):
    (site / "local" / "fedproin.json").write_text(content)
    with pytest.raises(SettingsError) as error:
        locate(make_settings(data={"path": "/job"}), True, site)
    assert str(error.value) == (
        'local/fedproin.json must hold a JSON object with the text "data", such as {"data": "/data"}.'
    )


def test_the_sites_minimum_comes_with_its_location(site, make_settings):
    (site / "local" / "fedproin.json").write_text(json.dumps({"data": "/data", "minimum_count": 7}))
    assert locate(make_settings(), False, site).minimum_count == 7
    configure(site, "/data")
    assert locate(make_settings(), False, site).minimum_count == 0
