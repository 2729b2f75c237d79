"""Modules, and what importing them must not bring in: each trial or command would pay for it."""

import ast
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brief_studies
import pytest
from command_line import printed

import autotune
from autotune.facts import sample_models
from autotune.process.child import Child

PACKAGE = Path(autotune.__file__).parent
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MOST_FUNCTION_LINES = 60
MOST_IMPORTS = 15
FLOW = [
    f"autotune.study.{name}"
    for name in ("run", "resolve", "strategy", "loop", "measuring", "finish", "options")
]
MOST_FRAMES = 15
# from the bottom up; a module may import its own room and those below it
ROOMS = [
    "errors",
    "deploy",
    "export",
    "process",
    "runtimes",
    "facts",
    "graph",
    "space",
    "measure",
    "inspection",
    "search",
    "storage",
    "results",
    "study",
    "applications",
    "report",
    "cli",
]


def _room(module: str) -> str:
    return module.split(".")[1]


def _floor(module: str) -> int:
    return ROOMS.index(_room(module))


def _nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def _imports(file: Path) -> set[str]:
    names = set()
    for node in _nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{name.name}" for name in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return {name for name in names if name.startswith("autotune.")}


@pytest.mark.parametrize("room", ROOMS[1:])
def test_a_room_says_what_it_may_import(room: str) -> None:
    """And it imports nothing else, so the sentence stays true."""
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8")))
    assert text is not None
    (said,) = re.findall(r"It may import ([^.]*)", text)
    imported = {_room(name) for file in (PACKAGE / room).rglob("*.py") for name in _imports(file)}
    used = (imported & set(ROOMS)) - {room}
    assert used <= set(re.findall(r"[a-z]+", said)) & set(ROOMS)


def _imported_names(file: Path) -> set[str]:
    """Returns the modules that a file imports, those inside functions too."""
    names = set()
    for node in _nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return names


def _modules() -> dict[str, Path]:
    files = [f for f in PACKAGE.rglob("*.py") if f.name not in {"__init__.py", "__main__.py"}]
    return {".".join(("autotune", *f.relative_to(PACKAGE).with_suffix("").parts)): f for f in files}


def test_imports_point_down() -> None:
    """And storage and results stand side by side: neither imports the other."""
    apart = {"storage", "results"}
    wrong = [
        f"{module} imports {target}"
        for module, file in _modules().items()
        for target in _imports(file)
        if target != "autotune.__version__"
        and (_floor(target) > _floor(module) or {_room(module), _room(target)} == apart)
    ]
    assert wrong == []


def test_imports_form_no_cycle() -> None:
    modules = _modules()
    edges = {m: {t for t in _imports(f) if t in modules} - {m} for m, f in modules.items()}
    while edges:
        leaves = [module for module, targets in edges.items() if not targets & edges.keys()]
        assert leaves, f"a cycle among {sorted(edges)}"
        for leaf in leaves:
            del edges[leaf]


def test_no_module_of_the_study_imports_many() -> None:
    """The flow of a study is read from few names; each of them leads to one room."""
    modules = _modules()
    counts = {name: len(_imports(modules[name]) & modules.keys()) for name in FLOW}
    assert {module: count for module, count in counts.items() if count > MOST_IMPORTS} == {}


@pytest.mark.process
def test_a_trial_passes_few_functions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    depths = []
    request = Child.request

    def counted(self: Child, *arguments: Any, **named: Any) -> Any:
        codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
        names = [code.co_qualname for code in codes if code.co_filename.startswith(str(PACKAGE))]
        # the search's; the final comparison has rounds in between
        if "MeasuredTrial.__call__" in names:
            depths.append(names.index("run_study"))
        return request(self, *arguments, **named)

    brief_studies.measure_briefly(monkeypatch.setattr)
    monkeypatch.setattr(Child, "request", counted)
    sample_models.write("lstm", tmp_path / "lstm.onnx")
    autotune.tune(tmp_path / "lstm.onnx", trials=2, space="session", out=tmp_path / "out")
    assert depths
    assert max(depths) <= MOST_FRAMES


def test_the_loader_can_be_vendored() -> None:
    """`deploy/` and `errors.py` import the standard library and onnxruntime, and nothing else.

    What generates takes NumPy as well, which onnxruntime brings.
    """
    room = {m: f for m, f in _modules().items() if _room(m) in {"errors", "deploy"}}
    allowed = {*sys.stdlib_module_names, "onnxruntime"}
    own = {"autotune.errors", "autotune.deploy"}
    with_numpy = {"autotune.deploy.generation"}
    wrong = [
        f"{module} imports {name}"
        for module, file in room.items()
        for name in _imported_names(file)
        if name.split(".")[0] not in (allowed | {"numpy"} if module in with_numpy else allowed)
        and ".".join(name.split(".")[:2]) not in own
    ]
    assert len(room) > 10
    assert wrong == []


def test_nothing_of_ours_is_imported_under_another_name() -> None:
    """A name means the same thing in every file of the package and the benchmarks."""
    wrong = []
    for file in [*_modules().values(), *BENCHMARKS.glob("*.py")]:
        for node in _nodes(file):
            if isinstance(node, ast.ImportFrom):
                ours = (node.module or "").split(".")[0] == "autotune"
                renamed = [name for name in node.names if ours and name.asname]
            elif isinstance(node, ast.Import):
                renamed = [n for n in node.names if n.asname and n.name.split(".")[0] == "autotune"]
            else:
                continue
            wrong += [f"{file.name}:{node.lineno} {name.name} as {name.asname}" for name in renamed]
    assert wrong == []


def test_only_modules_that_end_in_child_run_as_a_process() -> None:
    """The list of files shows what runs outside the study's own process."""
    runnable = {
        module
        for module, file in _modules().items()
        if '\nif __name__ == "__main__":' in file.read_text(encoding="utf-8")
    }
    assert runnable == {module for module in _modules() if module.endswith("_child")}


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for module, file in _modules().items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def test_no_function_is_long() -> None:
    lengths = {
        f"{module}.{node.name}": (node.end_lineno or 0) - node.body[0].lineno + 2
        for module, file in _modules().items()
        for node in _nodes(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MOST_FUNCTION_LINES} == {}


def test_only_the_command_line_prints() -> None:
    """Ruff knows `print` (T20), and not that of a console."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, file in _modules().items()
        if _room(module) != "cli"
        for node in _nodes(file)
        if isinstance(node, ast.Attribute) and node.attr == "print"
    ]
    assert wrong == []


HEAVY = {
    "autotune": "onnxruntime",
    "autotune.space.files, autotune.graph.parameters": "onnx onnxruntime numpy",
    "autotune.graph.prepare_child": "psutil filelock numpy.random onnxruntime optuna "
    "autotune.graph.prepare autotune.process.child autotune.facts.workload",
    "autotune.measure.measure_child": "onnx optuna psutil filelock subprocess socket numpy.random "
    "autotune.measure.measurer autotune.process.child autotune.facts.workload",
}


@pytest.mark.process
@pytest.mark.parametrize("modules", HEAVY)
def test_imports_bring_in_nothing_heavy(modules: str) -> None:
    found = printed(f"import sys, {modules}; print(*sys.modules)").split()
    assert set(HEAVY[modules].split()) & set(found) == set()


@pytest.mark.process
def test_loader_brings_in_nothing_heavy() -> None:
    """An application that loads a config pays for no search, terminal, digest or plugin."""
    heavy = "optuna onnx typer rich sqlalchemy _hashlib importlib.metadata".split()
    own = ["autotune.deploy.plugins", "autotune.deploy.config", "autotune.deploy.decoder"]
    script = (
        "import sys, onnxruntime; before = set(sys.modules); import autotune; autotune.load; "
        "autotune.apply; "
        f"print([n for n in {heavy + own} if n in sys.modules and n not in before])"
    )
    assert printed(script) == "[]"


def test_one_module_says_what_a_node_is() -> None:
    """A type says nothing without its domain: functions of a model may be called Relu."""
    readers = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if ".op_type" in path.read_text(encoding="utf-8")
    ]
    # what ONNX Runtime says of placed nodes has no domain
    assert sorted(readers) == ["deploy/placement.py", "facts/graphs.py"]
