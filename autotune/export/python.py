"""One Python file that loads a tuned config without autotune.

It carries the modules of the loader as they are, so it does what ``autotune.load`` does.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import autotune
from autotune.deploy.config import TunedConfig
from autotune.export.rendering import Rendering, identifier, printable, template

_PACKAGE = "autotune"
_LOADER = "autotune.deploy.loader"


def render(_config: TunedConfig, config_name: str, _model_name: str) -> Rendering:
    """Returns a module with ``load``, ``session_options`` and ``run_options`` of the config.

    The loader in it checks the processor, so the rendering names no needs.
    """
    sources = dict(modules_of(_LOADER))
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:12]
    prefix = f"_{_PACKAGE}_{digest}"
    renamed = {
        module.replace(_PACKAGE, prefix, 1): _renamed(source, prefix)
        for module, source in sources.items()
    }
    module = f"load_{identifier(Path(config_name).stem)}"
    text = template("python").render(
        module=module,
        config=printable(config_name).replace('"', "?"),
        config_literal=repr(config_name),
        version=autotune.__version__,
        prefix=prefix,
        loader=_LOADER.replace(_PACKAGE, prefix, 1),
        sources=renamed,
    )
    return Rendering(
        texts={f"{module}.py": text}, use=f"import {module}; session = {module}.load()"
    )


def modules_of(name: str, seen: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yields a module of ours and those that it imports, each after those that it needs."""
    seen = set() if seen is None else seen
    if name in seen:
        return
    seen.add(name)
    path = Path(autotune.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
    if not path.is_file():  # a package, whose file holds a docstring alone
        return
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            for item in node.names:  # a module of a package, or a name in a module
                yield from modules_of(f"{node.module}.{item.name}", seen)
            yield from modules_of(str(node.module), seen)
    yield name, source


def _renamed(source: str, prefix: str) -> str:
    """Returns the source of a module with our imports from the vendored package."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {_PACKAGE}.", f"from {prefix}.", 1)
    return "\n".join(lines)
