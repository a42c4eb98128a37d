"""`fedproin site init`: write a startup kit's `local/` files, all of them or none, and look whether they will do."""

import argparse
import difflib
import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedproin.errors import UserError
from fedproin.tensor_file import write_atomically
from fedproin.tools.doctor import check_machine
from fedproin.tools.findings import any_failed
from fedproin.tools.kit import Kit, read_kit, require_sound
from fedproin.tools.site_files import Choices, Json, site_files

STORE = "fedproin-store"
STORED = ("jobs", "snapshots", "logs")
SITE_ONLY = {"data": "--data", "gpus": "--gpus", "gpu_memory": "--gpu-memory", "minimum_count": "--minimum-count"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    verbs = subparsers.add_parser("site", help="configure a FLARE startup kit").add_subparsers(
        required=True, metavar="VERB"
    )
    verb = verbs.add_parser("init", help="write the files in `local` of a site's or a server's kit")
    verb.add_argument("kit", type=Path, metavar="KIT", help="folder that holds `startup` and `local`")
    verb.add_argument("--data", type=Path, metavar="PATH", help="the site's table, folder or ZIP")
    verb.add_argument("--gpus", type=_count, metavar="N", help="GPUs for training")
    verb.add_argument("--gpu-memory", type=_gib, metavar="GIB", help="memory of each of them for training")
    verb.add_argument("--minimum-count", type=_count, metavar="N", help="fewest images of a class that the site has")
    verb.add_argument("--store", type=Path, metavar="DIR", help=f"a server's jobs; default: {STORE} beside the kit")
    verb.add_argument("--allow-byoc", action="store_true", help="run code that comes with a job")
    verb.add_argument("--yes", action="store_true", help="replace files that are there")
    verb.set_defaults(run=run_init)


def run_init(arguments: argparse.Namespace) -> int:
    """Write the files and check the machine; 1 if a check fails."""
    kit = read_kit(arguments.kit)
    require_sound(kit)
    choices = _choices(kit, arguments)
    write_site_files(kit, choices, arguments.yes)
    findings = check_machine(kit)
    print("\n".join(map(str, findings)))
    print(f"Next: fedproin doctor {arguments.kit} --job JOB")
    return int(any_failed(findings))


def write_site_files(kit: Kit, choices: Choices, replace_existing: bool) -> None:
    """Bring `local/` up to date; the directories of a server's store are made, for its owner alone.

    Raises:
        UserError: files are there, would change, and may not be replaced; or they cannot be written.
    """
    contents = {name: _text(values) for name, values in site_files(kit, choices).items()}
    try:
        there = {name: (kit.local / name).read_text() for name in contents if (kit.local / name).exists()}
        changed = [name for name, content in contents.items() if there.get(name) != content]
        _ask_before([name for name in changed if name in there], there, contents, replace_existing)
        if choices.store is not None:
            _make_store(choices.store)
        with TemporaryDirectory(prefix=".fedproin.", dir=kit.local) as staging:
            for name in changed:  # a full disk shows here, when nothing has been replaced yet
                write_atomically(Path(staging) / name, contents[name].encode())
            for name in changed:
                (Path(staging) / name).replace(kit.local / name)
                print(f"wrote  local/{name}")
    except OSError as error:
        raise UserError(f"The kit cannot be configured ({error.strerror}): run this as its owner.") from error


def _ask_before(names: list[str], there: dict[str, str], contents: dict[str, str], replace_existing: bool) -> None:
    for name in names:
        old, new = (text.splitlines(keepends=True) for text in (there[name], contents[name]))
        print("".join(difflib.unified_diff(old, new, f"local/{name}", f"local/{name} (new)", n=1)), end="")
    if names and not replace_existing:
        raise UserError(f"Nothing was written: {', '.join(names)} in `local` would change; add --yes to replace them.")


def _choices(kit: Kit, arguments: argparse.Namespace) -> Choices:
    if kit.kind == "admin":
        raise UserError("An admin's kit needs no configuration: name the kit of a site or of the server.")
    given = [option for name, option in SITE_ONLY.items() if getattr(arguments, name) is not None]
    if kit.kind == "server" and given:
        raise UserError(f"This is the server's kit, which has no use for {' and '.join(given)}.")
    if kit.kind == "site" and arguments.store is not None:
        raise UserError("This is a site's kit, which has no use for --store.")
    choices = Choices(
        **{name: getattr(arguments, name) for name in (*SITE_ONLY, "store")}, allow_byoc=arguments.allow_byoc
    )
    return _server_choices(kit, choices) if kit.kind == "server" else _site_choices(choices)


def _server_choices(kit: Kit, choices: Choices) -> Choices:
    store = choices.store or kit.directory.parent / STORE
    return replace(choices, store=store.expanduser().resolve())


def _site_choices(choices: Choices) -> Choices:
    data = choices.data
    if data is None:
        data = Path(_ask("Table, folder or ZIP of this site's images: "))
        if choices.gpus is None:
            choices = replace(choices, gpus=_count(_ask("GPUs for training [0]: ") or "0"))
    data = data.expanduser().absolute()
    try:
        there = data.exists()
    except PermissionError:
        raise UserError("The data cannot be read: give the user who runs this the right to read it.") from None
    if not there:
        raise UserError("There is no data at the given path: name the site's table, folder or ZIP.")
    return replace(choices, data=data)


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        raise UserError("Name the site's table, folder or ZIP with --data: there is no terminal to ask on.")
    try:
        return input(question).strip()
    except EOFError:
        raise UserError("Nothing was written: the question was not answered.") from None


def _make_store(store: Path) -> None:
    for path in (store, *(store / name for name in STORED)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)


def _text(values: Json) -> str:
    return json.dumps(values, indent=2) + "\n"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number is wanted, got '{text}'")
    return int(text)


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of GiB is wanted, got '{text}'")
    return value
