"""Imports point down: what is on a floor may know the floors below it, and its own folder, and nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedproin

PACKAGE = Path(fedproin.__file__).parent
FLOORS = [
    {"", "settings", "seeds", "errors", "tensor_file"},
    {"maths"},
    {"data", "models"},
    {"methods"},
    {"training"},  # above the methods, whose verbs it calls
    {"federation"},
    {"flare"},
    {"tools"},
    {"__main__"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "monai", "torchvision", "matplotlib", "sklearn", "tensorboard")


def unit(parts: tuple[str, ...]) -> str:
    return parts[0] if parts else ""


def imports(path: Path, top_only: bool = False) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text()))) if not top_only else ast.parse(path.read_text()).body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_every_module_has_a_floor():
    units = {unit(path.relative_to(PACKAGE).with_suffix("").parts) for path in MODULES} - {"__init__"}
    assert units == FLOOR.keys() - {""}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    own = unit(path.relative_to(PACKAGE).with_suffix("").parts).replace("__init__", "")
    for name in imports(path):
        first, *rest = name.split(".")
        if first != "fedproin" or (rest and rest[0] not in FLOOR):
            continue
        other = unit(tuple(rest))
        if other == own or (own and not other):
            continue
        if FLOOR[own] == 0:
            assert FLOOR[other] == 0, f"{own} imports {name}"
        else:
            assert FLOOR[other] < FLOOR[own], f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_the_flare_floor_knows_flare(path):
    if path.relative_to(PACKAGE).parts[0] != "flare":
        assert not any(name.split(".")[0] == "nvflare" for name in imports(path))


def test_what_flare_loads_before_there_is_work_is_light():
    """The executor, in the simulator once a task and site; and the first import of the trainer's module."""
    code = f"import sys, fedproin.flare.executor; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_site_that_only_validates_imports_no_monai():
    code = (
        "import sys, fedproin.federation.site; print([n for n in ('monai', 'torchvision.models') if n in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "monai" not in printed


@pytest.mark.parametrize(
    "module", ["settings", "seeds", "errors", "tensor_file", "federation.messages", "federation.checks"]
)
def test_the_ground_floor_is_light(module):
    assert not {
        name.split(".")[0] for name in imports(PACKAGE / f"{module.replace('.', '/')}.py", top_only=True)
    } & set(HEAVY)


def test_nothing_happens_on_import(tmp_path):
    """Every module can be imported in an empty home: no file is written and nothing is printed."""
    names = [
        ".".join(("fedproin", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py" and "flare" not in path.parts
    ]
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names)
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={"HOME": str(tmp_path), "FEDPROIN_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert not any("fedproin" in path.name for path in tmp_path.rglob("*"))
