import stat

import pytest
import torch

from fedproin.errors import UserError
from fedproin.training.site_state import SiteState

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def state(tmp_path):
    return SiteState(tmp_path / "state", RUN)


def value(memory):
    return None if memory is None else (memory.round, memory.tensors["x"].item())


def save(state, *rounds: int):
    for round_ in rounds:
        state.save(round_, {"x": torch.tensor(float(round_))})


def test_degenerate_nothing_in_a_first_participation(state):
    assert state.load(before=0) is None
    assert state.load(before=9) is None


def test_the_newest_of_an_earlier_round_is_loaded(state):
    save(state, 2, 5)
    assert value(state.load(before=9)) == (5, 5.0)
    assert value(state.load(before=6)) == (5, 5.0)
    assert value(state.load(before=5)) == (2, 2.0)  # round 5 is run again, after the server came back
    assert state.load(before=2) is None


def test_a_round_that_is_run_again_replaces_its_state(state):
    save(state, 1, 2)
    state.save(2, {"x": torch.tensor(20.0)})
    assert value(state.load(before=3)) == (2, 20.0)
    assert value(state.load(before=2)) == (1, 1.0)


def test_two_are_kept(state):
    save(state, 0, 3, 4, 9, 1000000 - 1)
    assert sorted(path.name for path in state.directory.iterdir()) == [
        "round-000009.safetensors",
        "round-999999.safetensors",
    ]


def test_the_state_of_the_best_version_is_kept(state):
    """What the site had when the best model was validated: it is scored again after the last round."""
    save(state, 0, 2)
    for round_, best in ((5, 3), (6, 3), (9, 3)):
        state.save(round_, {"x": torch.tensor(float(round_))}, best)
    assert value(state.load(before=3)) == (2, 2.0)
    assert len(list(state.directory.iterdir())) == 3
    state.save(10, {"x": torch.tensor(10.0)}, 9)
    assert value(state.load(before=9)) == (6, 6.0)
    assert len(list(state.directory.iterdir())) == 3
    state.save(11, {"x": torch.tensor(11.0)}, 0)  # the model that no site had trained
    assert state.load(before=0) is None


def test_what_was_saved_is_there_though_the_server_went_far_back(state):
    save(state, 7, 8)
    save(state, 3)  # its checkpoint was restored from a copy
    assert value(state.load(before=4)) == (3, 3.0)
    save(state, 4)
    assert value(state.load(before=9)) == (4, 4.0)


def test_runs_do_not_mix(tmp_path, state):
    save(state, 1)
    assert SiteState(tmp_path / "state", "f" * 32).load(before=9) is None


def test_only_its_owner_may_read_it(state):
    save(state, 1)
    (path,) = state.directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "run_id", ["../../elsewhere", "", "0123", "0123456789ABCDEF", "01234567\n", "g" * 32, "0" * 65]
)
def test_the_servers_run_id_cannot_leave_the_directory(tmp_path, run_id):
    with pytest.raises(ValueError, match="hexadecimal"):
        SiteState(tmp_path, run_id)


def test_a_damaged_state_is_a_user_error(state):
    save(state, 1)
    (path,) = state.directory.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="damaged"):
        state.load(before=2)


def test_a_file_of_another_run_or_round_is_a_user_error(tmp_path, state):
    other = SiteState(tmp_path / "state", "f" * 32)
    save(state, 1)
    save(other, 1)
    (path,) = state.directory.iterdir()
    path.replace(state.directory / "round-000002.safetensors")
    with pytest.raises(UserError, match="another run or round"):
        state.load(before=3)
    (path,) = other.directory.iterdir()
    path.replace(state.directory / "round-000003.safetensors")
    with pytest.raises(UserError, match="another run or round"):
        state.load(before=4)


def test_other_files_do_not_matter(state):
    save(state, 1)
    for name in ("round-000007.safetensors.bak", "round-x.safetensors", ".round-000008.safetensors.5.tmp"):
        (state.directory / name).write_text("")
    assert value(state.load(before=9)) == (1, 1.0)
