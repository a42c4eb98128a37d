"""The README's own commands: fenced blocks with a role, and invisible comments that say which file goes to whom."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "provisioning" / "README.md"
STEP = re.compile(
    r"^```sh (?P<role>[\w-]+)\n(?P<commands>.*?)^```$"
    r"|^<!-- carry (?P<what>\S+) from (?P<sender>\w+) to (?P<receiver>\w+) -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Commands that one role types."""

    role: str
    commands: str


@dataclass(frozen=True)
class Carry:
    """A file or folder that goes from one role's folder to another's."""

    what: str
    sender: str
    receiver: str


def steps(heading: str = "") -> Iterator[Block | Carry]:
    """All steps in their order, or those below one heading."""
    text = README.read_text()
    if heading:
        text = re.search(rf"^## {re.escape(heading)}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[0]
    for found in STEP.finditer(text):
        if found["role"]:
            yield Block(found["role"], found["commands"])
        else:
            yield Carry(found["what"], found["sender"], found["receiver"])


def names() -> set[str]:
    """The variables that the README asks its reader to set."""
    [block] = [step for step in steps() if isinstance(step, Block) and step.role == "names"]
    return set(re.findall(r"\b([A-Z]+)=", block.commands))


def type_in(commands: str, folder: Path, environment: Mapping[str, str], transcript: Path) -> str:
    """Type a block in a folder; what it printed. The transcript gets both, and how long it took."""
    folder.mkdir(mode=0o700, exist_ok=True)
    script = transcript.with_name("block.sh")
    script.write_text(commands)
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-v", "-eu", "-o", "pipefail", str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    typed = commands.splitlines()
    with transcript.open("a") as file:
        for line in done.stdout.splitlines():
            file.write(f"{folder.name}$ {line}\n" if line in typed else f"{line}\n")
        file.write(f"    [{time.monotonic() - started:.1f} s]\n\n")
    assert done.returncode == 0, done.stdout
    return "".join(f"{line}\n" for line in done.stdout.splitlines() if line not in typed)


def carry(step: Carry, sender: Path, receiver: Path, environment: Mapping[str, str]) -> None:
    """Mail a file, or a folder."""
    source = sender / re.sub(r"\$(\w+)", lambda found: environment[found[1]], step.what)
    target = receiver / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
