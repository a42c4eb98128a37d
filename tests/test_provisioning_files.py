"""Files for IT departments that cannot be run here: they are read, and held to what they promise."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROVISIONING = ROOT / "provisioning"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (PROVISIONING / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, rest in (line.split(maxsplit=1) for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(index for index, (name, _) in enumerate(found) if name == "FROM") :]


def test_the_image_knows_no_unknown_instruction_and_no_floating_base():
    known = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "CMD"}
    assert {name for name, _ in instructions()} <= known
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", base) for base in bases)


def test_the_image_ends_as_an_ordinary_user():
    users = [rest for name, rest in last_stage() if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert last_stage().index(("USER", users[-1])) > max(i for i, (name, _) in enumerate(last_stage()) if name == "RUN")


def test_the_image_holds_the_wheel_and_no_kit_and_installs_only_while_it_is_built():
    copied = " ".join(rest for name, rest in instructions() if name == "COPY")
    assert "wheel/" in copied
    assert not re.search(r"startup|\.key|workspace|state", copied)
    assert not any("pip install" in rest for _, rest in last_stage())
    [command] = [rest for name, rest in last_stage() if name == "CMD"]
    assert "sub_start.sh" in command
    assert "--once" in command


def test_what_the_image_copies_is_in_the_repository():
    sources = [rest.split()[0] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    assert sources == ["requirements.txt"]
    assert all((ROOT / source).exists() for source in sources)
    pinned = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("-e")]
    assert all(re.match(r"[\w.-]+(\[[\w,-]+\])?==", line) for line in pinned if line and not line.startswith("#"))


def test_the_project_file_has_a_server_ten_hospitals_and_their_people():
    project = yaml.safe_load((PROVISIONING / "project.yml").read_text())
    people = project["participants"]
    assert [sum(one["type"] == kind for one in people) for kind in ("server", "client", "admin")] == [1, 10, 12]
    roles = [one["role"] for one in people if one["type"] == "admin"]
    assert {role: roles.count(role) for role in roles} == {"project_admin": 1, "lead": 1, "org_admin": 10}
    assert {one["org"] for one in people if one["type"] == "client"} <= {
        one["org"] for one in people if one.get("role")
    }


def test_both_ways_are_of_the_same_federation():
    distributed = [yaml.safe_load(path.read_text()) for path in (PROVISIONING / "distributed").glob("*.yaml")]
    central = yaml.safe_load((PROVISIONING / "project.yml").read_text())
    assert {one["name"] for one in distributed} == {central["name"]}
    names = {one["participants"][0]["name"] for one in distributed if "participants" in one}
    assert names <= {one["name"] for one in central["participants"]}
