"""Which copy of the package runs, and that a job packed with another one is refused at both ends."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from fedproin.errors import UserError
from fedproin.federation.identity import (
    PACKAGE,
    Identity,
    code_files,
    code_hash,
    package_identity,
    packed_identity,
    require_same_package,
    running_identity,
)
from fedproin.federation.messages import Answer, Task
from fedproin.flare.controller import FedProInController
from fedproin.flare.executor import FedProInExecutor
from fedproin.flare.translation import from_flare, to_shareable

OTHER = Identity("0.0.9", "ab" * 32)
SENTENCE = (
    f"The package that runs here, fedproin {package_identity()}, is not the one the job was packed with "
    "(0.0.9+abababababab): install the wheel that came with the job, or ask the coordinator to pack it again."
)


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(PACKAGE, tmp_path / "copy")


@pytest.fixture
def config(tmp_path):
    """A job's config folder that was packed with the given package."""

    folder = tmp_path / "config"
    folder.mkdir()

    def make(identity=None):
        if identity is not None:
            (folder / "package.json").write_text(json.dumps(vars(identity)))
        return folder

    return make


def test_the_place_of_the_code_does_not_matter(copy):
    assert code_hash(copy) == code_hash(PACKAGE) == running_identity().hash
    assert package_identity() == f"{running_identity().version}+{code_hash(copy)[:12]}"


def test_nor_what_else_is_there_nor_the_ends_of_lines(copy):
    (copy / "maths" / "__pycache__").mkdir(exist_ok=True)
    (copy / "maths" / "__pycache__" / "drift.pyc").write_bytes(b"1")
    (copy / "py.typed").unlink()
    (copy / "notes.txt").write_text("1")
    (copy / ".#seeds.py").symlink_to("somebody@somewhere.1234")  # an editor's lock
    (copy / ".ipynb_checkpoints").mkdir()
    (copy / ".ipynb_checkpoints" / "seeds.py").write_text("1")
    for name in code_files(copy):
        (copy / name).write_bytes((copy / name).read_bytes().replace(b"\n", b"\r\n"))
    assert code_hash(copy) == code_hash(PACKAGE)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda copy: (copy / "seeds.py").write_text("1"), id="another content"),
        pytest.param(lambda copy: (copy / "seeds.py").rename(copy / "seed.py"), id="another name"),
        pytest.param(lambda copy: (copy / "more.py").write_text(""), id="one file more"),
        pytest.param(lambda copy: (copy / "seeds.py").unlink(), id="one file less"),
    ],
)
def test_every_change_of_the_code_matters(copy, change):
    change(copy)
    assert code_hash(copy) != code_hash(PACKAGE)


def test_a_job_that_was_not_packed_is_not_checked(config):
    assert packed_identity(config()) is None
    require_same_package(config())


def test_the_version_alone_does_not_matter(config):
    require_same_package(config(Identity("uninstalled", running_identity().hash)))


def test_another_package_is_refused(config):
    assert packed_identity(config(OTHER)) == OTHER
    with pytest.raises(UserError) as error:
        require_same_package(config(OTHER))
    assert str(error.value) == SENTENCE


@pytest.mark.parametrize("content", ["", "{", "[]", "1", '{"version": "0.1.0"}', "\xff"])
def test_a_damaged_record_is_refused(config, content):
    (config() / "package.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match="is damaged: ask the coordinator to pack the job again"):
        require_same_package(config())


# both ends in FLARE


def engine(config):
    workspace = SimpleNamespace(get_root_dir=lambda: str(config), get_app_dir=lambda job: str(config.parent))
    return SimpleNamespace(get_workspace=lambda: workspace, get_clients=list)


def context(config):
    fl_ctx = FLContext()
    fl_ctx.set_prop(FLContextKey.CURRENT_JOB_ID, "job")
    fl_ctx.get_engine = lambda: engine(config)
    return fl_ctx


def test_a_site_answers_with_the_sentence(config):
    task = Task("round", "ab" * 16, "", 3, ("site-1",), ("site-1",), False, None, {"w": np.ones(2, np.float32)})
    reply = FedProInExecutor().execute("round", to_shareable(task), context(config(OTHER)), Signal())
    answer = from_flare(Answer, reply)
    assert (answer.error, answer.round, answer.trained) == (SENTENCE, 3, False)


def test_the_server_ends_the_job_with_the_sentence(config, monkeypatch):
    controller, said = FedProInController(), []
    controller._engine, controller._simulated = engine(config(OTHER)), False
    monkeypatch.setattr(controller, "system_panic", lambda reason, fl_ctx: said.append(reason))
    controller.control_flow(Signal(), context(config()))
    assert said == [SENTENCE]
