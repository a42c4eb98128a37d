"""No module of the package can turn what it reads into code or objects, nor lets the shell run a text."""

import ast
from pathlib import Path

import pytest

import fedproin
from fedproin.errors import SettingsError
from fedproin.methods import METHODS, create_method
from fedproin.settings import Settings

PACKAGE = Path(fedproin.__file__).parent
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "codeop"}
NAMES = {"eval", "exec", "compile", "__import__"}
CALLS = {("torch", "save"), ("os", "system"), ("os", "popen"), ("importlib", "import_module")}
ALLOWED = {"methods/__init__.py": ["importlib.import_module"]}  # of a table of names; the next test holds it
SOURCES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def what_executes(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if name.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if module.split(".")[0] in MODULES else []
                found += [
                    f"{module}.{name.name}" for name in names if (module, name.name) in CALLS | {("torch", "load")}
                ]
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if (module, name) in CALLS:
                found.append(f"{module}.{name}")
            case ast.keyword(arg="shell" | "allow_pickle", value=ast.Constant(value=True)):
                found.append(str(node.arg))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
                safe = any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in keywords)
                found += [] if safe else ["torch.load"]
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_that_is_read_is_executed(source):
    assert what_executes(ast.parse((PACKAGE / source).read_text())) == ALLOWED.get(source, [])


def test_a_method_is_a_class_of_the_package_and_its_name_one_of_a_table():
    assert all(place.startswith("fedproin.methods.") for place in METHODS.values())
    for name in ("subprocess:Popen", "os.system", "fedproin.methods.fedavg:FedAvg", ["fedavg"], None):
        with pytest.raises(SettingsError, match="Unknown method"):
            create_method(Settings(method={"name": name}))


@pytest.mark.parametrize(
    "line",
    [
        *(
            "import pickle",
            "import yaml as y",
            "from pickle import loads",
            "from torch import load",
            "from importlib import import_module",
        ),
        *(
            "torch.load(path)",
            "torch.load(path, weights_only=False)",
            "eval(text)",
            "np.load(path, allow_pickle=True)",
            "run(text, shell=True)",
        ),
    ],
)
def test_it_would_be_found(line):
    assert what_executes(ast.parse(line))
