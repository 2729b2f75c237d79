"""The rules of the house: imports point one way, and an application pays for the loader alone."""

import ast
import subprocess
import sys
from pathlib import Path

import autotune

PACKAGE = Path(autotune.__file__).parent
# from the bottom up; a module may import its own room and those below it
ROOMS = [
    "errors",
    "deploy",
    "process",
    "facts",
    "graph",
    "space",
    "measure",
    "search",
    "storage",
    "results",
    "study",
    "report",
    "cli",
]


def _floor(module: str) -> int:
    return ROOMS.index(module.split(".")[1])


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{name.name}" for name in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.startswith("autotune.")}


def _modules() -> dict[str, Path]:
    files = [f for f in PACKAGE.rglob("*.py") if f.name not in {"__init__.py", "__main__.py"}]
    return {".".join(("autotune", *f.relative_to(PACKAGE).with_suffix("").parts)): f for f in files}


def test_imports_point_down() -> None:
    """No module imports one of a higher floor."""
    wrong = [
        f"{module} imports {target}"
        for module, file in _modules().items()
        for target in _imports(file)
        if target != "autotune.__version__" and _floor(target) > _floor(module)
    ]
    assert wrong == []


def test_imports_form_no_cycle() -> None:
    """Modules of one floor do not import each other in a circle."""
    modules = _modules()
    edges = {m: {t for t in _imports(f) if t in modules} - {m} for m, f in modules.items()}
    while edges:
        leaves = [module for module, targets in edges.items() if not targets & edges.keys()]
        assert leaves, f"a cycle among {sorted(edges)}"
        for leaf in leaves:
            del edges[leaf]


def test_loader_brings_in_nothing_heavy() -> None:
    """An application that loads a config imports neither the search nor the terminal."""
    script = (
        "import sys, autotune; autotune.load; "
        "print([n for n in ('optuna', 'onnx', 'typer', 'rich', 'sqlalchemy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_importing_the_package_needs_no_onnxruntime() -> None:
    """``import autotune`` alone does not bring in onnxruntime."""
    script = "import sys, autotune; print('onnxruntime' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def _prints(file: Path) -> list[int]:
    calls = [n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Call)]
    return [
        call.lineno
        for call in calls
        if (isinstance(call.func, ast.Name) and call.func.id in {"print", "pprint"})
        or (isinstance(call.func, ast.Attribute) and call.func.attr == "print")
    ]


def test_only_the_command_line_prints() -> None:
    """Whatever is said to the user is said by the command line, or to a console that it gave."""
    # inspection runs in a child and speaks to its own stderr
    speakers = {"autotune.facts.model_child"}
    speakers |= {module for module in _modules() if module.startswith("autotune.cli.")}
    wrong = [
        f"{module}:{line}"
        for module, file in _modules().items()
        if module not in speakers
        for line in _prints(file)
    ]
    assert wrong == []
