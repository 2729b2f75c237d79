"""One Python file that loads a tuned config without autotune.

It carries the modules of the loader as they are, so it does what ``autotune.load`` does.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import autotune
from autotune.deploy.config import TunedConfig
from autotune.export.literals import identifier
from autotune.export.rendering import Rendering, printable

_PACKAGE = "autotune"
_LOADER = "autotune.deploy.loader"


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a module with ``load``, ``session_options`` and ``run_options`` of the config."""
    del config, name
    sources = dict(_modules(_LOADER, set()))
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:12]
    prefix = f"_{_PACKAGE}_{digest}"
    renamed = {
        module.replace(_PACKAGE, prefix, 1): _renamed(source, prefix)
        for module, source in sources.items()
    }
    texts = "".join(f"    {module!r}: r'''{source}''',\n" for module, source in renamed.items())
    module = f"load_{identifier(Path(config_name).stem)}"
    text = _TEMPLATE.format(
        module=module,
        config=printable(config_name).replace('"', "?"),
        config_literal=repr(config_name),
        version=autotune.__version__,
        prefix=prefix,
        loader=_LOADER.replace(_PACKAGE, prefix, 1),
        sources=texts,
    )
    return Rendering(
        texts={f"{module}.py": text}, lost=(), use=f"import {module}; session = {module}.load()"
    )


def _modules(name: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yields a module of ours and those that it imports, each after those that it needs."""
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
                yield from _modules(f"{node.module}.{item.name}", seen)
            yield from _modules(str(node.module), seen)
    yield name, source


def _renamed(source: str, prefix: str) -> str:
    """Returns the source of a module with our imports from the vendored package."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {_PACKAGE}.", f"from {prefix}.", 1)
    return "\n".join(lines)


_TEMPLATE = '''\
"""Loads the tuned config {config} beside this file, without autotune.

    import {module}

    session = {module}.load()  # an onnxruntime.InferenceSession

Written by: autotune export {config} --to python. Do not edit; export again. It needs onnxruntime
alone, and holds the loader of autotune {version} (Apache-2.0).
"""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType

_PREFIX = "{prefix}"
# The loader's modules in the order in which they import each other.
_SOURCES = {{
{sources}}}


def _make_package(name):
    package = ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package


def _make_modules():
    """Makes the loader's modules; another exported file in this process may have made them."""
    if _PREFIX in sys.modules:
        return
    _make_package(_PREFIX)
    _make_package(_PREFIX + ".deploy")
    for name, source in _SOURCES.items():
        module = ModuleType(name)
        module.__file__ = __file__
        sys.modules[name] = module
        exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)


_make_modules()
_loader = sys.modules["{loader}"]
_config = Path(__file__).with_name({config_literal})

ConfigError = _loader.ConfigError
ConfigWarning = _loader.ConfigWarning
load = partial(_loader.load, _config)
session_options = partial(_loader.session_options, _config)
run_options = partial(_loader.run_options, _config)
'''
