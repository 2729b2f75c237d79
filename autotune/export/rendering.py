"""What an export writes, and what of a config a target cannot express; literals of languages."""

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import ATTRIBUTES, EXACT_PRODUCTS, Value
from autotune.deploy.providers import CPU, provider_named
from autotune.deploy.session import SessionConfig

_PLAIN = range(0x20, 0x7F)


def octal_literal(text: str) -> str:
    """Returns a string of C++ or of protobuf's text format, its other bytes in octal."""
    body = ""
    for byte in text.encode():
        if byte in b'"\\':
            body += "\\"
        body += chr(byte) if byte in _PLAIN else f"\\{byte:03o}"
    return f'"{body}"'


def identifier(name: str) -> str:
    """Returns a name with letters, digits and underscores alone, which begins with a letter."""
    word = re.sub("[^A-Za-z0-9]+", "_", name).strip("_").lower()
    return word if word[:1].isalpha() else f"model_{word}".rstrip("_")


def class_name(name: str) -> str:
    """Returns a name as classes have it: ``mobilenet_v2`` becomes ``MobilenetV2``."""
    return "".join(part.capitalize() for part in identifier(name).split("_"))


_DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
_ENV_ALLOCATORS = "session.use_env_allocators"


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a file that lies beside the config.

    Attributes:
        appended: Bytes that follow it in the copy.
    """

    source: str
    appended: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What an export writes.

    Attributes:
        texts: The text of each file, by its path relative to the output folder.
        use: How the result is used, as a sentence or a command.
        lost: What the target cannot express, in words.
        needs: What the processor must have, which the target does not check, in words.
        copies: The files that are copied, by the relative path of the copy.
    """

    texts: Mapping[str, str]
    use: str
    lost: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    copies: Mapping[str, Copy] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target that a template writes, and the parts of a session that it can express.

    Attributes:
        file: Path of the file of a template, relative to the output folder; ``{snake}`` and
            ``{camel}`` stand for the model's name as an identifier and as the name of a class.
        use: How the result is used, with the same names.
        options: Its names of the attributes of ``SessionOptions``.
        values: How it writes the values of these that are words.
        comment: What begins a line of a comment; empty where the file has none.
        entries: Names of the session config entries; None means all.
        providers: Its names of the execution providers, the CPU's apart; None means all of them.
        provider_options: The options of providers that it takes; all for those that are not named.
        dimensions: Whether it takes sizes of dimensions.
        allocator: Whether it can register the process-wide CPU allocator.
        run_entries: Whether it takes run config entries.
        copies_model: Whether the model's files belong beside the file, in a folder ``1``.
    """

    options: Mapping[str, str]
    values: Mapping[str, Value]
    file: str = ""
    use: str = ""
    comment: str = ""
    literal: Callable[[str], str] = str
    entries: Collection[str] | None = None
    providers: Mapping[str, str] | None = field(default_factory=dict)
    provider_options: Mapping[str, Collection[str]] = field(default_factory=dict)
    dimensions: bool = True
    allocator: bool = True
    run_entries: bool = True
    copies_model: bool = False

    def has_provider(self, name: str) -> bool:
        """Returns whether it takes the execution provider of that name."""
        return name == CPU or self.providers is None or name in self.providers

    def options_of(self, session: SessionConfig) -> dict[str, Value]:
        """Returns the changed attributes of ``SessionOptions`` that it takes, as it writes them."""
        return {
            name: self.values[value] if isinstance(value, str) else value
            for name, value in changed_options(session).items()
            if name in self.options and (not isinstance(value, str) or value in self.values)
        }

    def entries_of(self, session: SessionConfig) -> dict[str, str]:
        """Returns the session config entries that it takes.

        Without the process-wide allocator the entry that asks for it would have no meaning.
        """
        return {
            name: text
            for name, text in _all_entries(session).items()
            if (self.entries is None or name in self.entries)
            and (self.allocator or name != _ENV_ALLOCATORS)
        }

    def providers_of(self, session: SessionConfig) -> list[tuple[str, dict[str, str]]]:
        """Returns the execution providers that it takes, each with the options that it takes."""
        return [
            (name, {key: text for key, text in options.items() if self._takes(name, key)})
            for name, options in session.providers
            if self.has_provider(name)
        ]

    def lost(self, session: SessionConfig) -> Iterator[str]:
        """Yields the parts of `session` that it cannot express, in words."""
        options, entries = self.options_of(session), self.entries_of(session)
        for name, value in changed_options(session).items():
            if name not in options:
                yield f"session option {name}={value}"
        for name, text in _all_entries(session).items():
            if name not in entries and name != _ENV_ALLOCATORS:
                yield f"session config entry {name}={text}"
        yield from self._lost_of_providers(session)
        if session.provider_cache:
            yield f"folder {session.provider_cache} of models that the provider compiled"
        if not self.dimensions:
            yield from (
                f"dimension {name}={size}" for name, size in session.free_dimensions.items()
            )
        if not self.allocator and session.env_allocator:
            yield f"process-wide CPU allocator with {dict(session.env_allocator)}"
        if not self.run_entries:
            yield from (f"run option {name}={text}" for name, text in session.run_entries.items())

    def _lost_of_providers(self, session: SessionConfig) -> Iterator[str]:
        for provider, given in session.providers:
            if not self.has_provider(provider):
                yield f"execution provider {provider} with {dict(given)}"
                continue
            for key, text in given.items():
                if not self._takes(provider, key):
                    yield f"option {key}={text} of {provider}"

    def _takes(self, provider: str, option: str) -> bool:
        """Returns whether an option is written.

        A session that replays captured graphs answers for the buffers that were bound first; code
        that does not bind any would get their answers, without an error.
        """
        if option == provider_named(provider).graph_capture:
            return False
        return provider not in self.provider_options or option in self.provider_options[provider]


def render_text(
    target: Target, target_name: str, config: TunedConfig, config_name: str, model_name: str
) -> Rendering:
    """Returns the file of a target, by the template of its name."""
    session = config.session
    names = {"snake": identifier(model_name), "camel": class_name(model_name)}
    file = target.file.format(**names)
    lost = tuple(target.lost(session))
    needs = processor_needs(config, lost)
    text = template(target_name).render(
        **names,
        heading=_heading(target, target_name, config_name, lost, needs),
        literal=target.literal,
        model=config.model.file,
        names=target.options,
        options=target.options_of(session),
        entries=target.entries_of(session),
        dimensions=session.free_dimensions if target.dimensions else {},
        providers=target.providers_of(session),
        provider_names=target.providers,
        accelerators=[pair for pair in target.providers_of(session) if pair[0] != CPU],
        run_entries=session.run_entries,
        allocator=session.env_allocator,
    )
    folder = file.rpartition("/")[0]
    files = config.model.names if target.copies_model else ()
    return Rendering(
        texts={file: text},
        use=target.use.format(**names, config=config_name),
        lost=lost,
        needs=needs,
        copies={f"{folder}/1/{name}": Copy(source=name) for name in files},
    )


def changed_options(session: SessionConfig) -> dict[str, Value]:
    """Returns the attributes of ``SessionOptions`` that differ from ONNX Runtime's defaults.

    What an execution provider requires of the session takes the place of the config's own: the
    threads of XNNPACK and those of ONNX Runtime would compete for the cores.
    """
    accelerator = session.accelerator
    required = provider_named(accelerator).session if accelerator else {}
    options = {**session.options, **required}
    return {name: value for name, value in options.items() if value != ATTRIBUTES[name].default}


def processor_needs(config: TunedConfig, lost: Collection[str]) -> tuple[str, ...]:
    """Returns what a processor must have for right answers where nothing checks it, in words."""
    needs = []
    exact = config.session.entries.get(EXACT_PRODUCTS) == "1" and any(
        EXACT_PRODUCTS in part for part in lost
    )
    if config.requires.vnni or exact:
        needs.append("VNNI (avx512_vnni or avx_vnni) if it is an x86, for eight-bit products")
    elif config.requires.exact_products:
        needs.append(
            "VNNI (avx512_vnni or avx_vnni) if it is an x86, for eight-bit products (without it, "
            f"set {EXACT_PRODUCTS} to 1)"
        )
    if config.requires.float16_in_float32:
        needs.append("an x86, or an ARM without half-precision arithmetic, for float16 nodes")
    if (block := config.requires.weight_block) is not None:
        vectors = {8: "an x86 without AVX-512", 16: "an x86 with AVX-512"}
        where = vectors.get(block, f"the kind {config.environment.cpu}")
        needs.append(f"a processor of one kind: {where}, for weights in its blocks")
    return tuple(needs)


def printable(line: str) -> str:
    """Returns a line that ends no comment and goes on in no other, whatever a model's names hold.

    A backslash at the end of a comment joins the next line to it in C++, and Java decodes escapes
    in comments.
    """
    return "".join(c if c.isascii() and c.isprintable() and c != "\\" else "?" for c in line)


def template(name: str) -> Template:
    """Returns the template of a target."""
    return _environment().get_template(f"{name}.j2")


@cache
def _environment() -> Environment:
    """Returns the environment of the templates: they write code, so nothing is escaped as HTML."""
    environment = Environment(
        loader=PackageLoader("autotune.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "json": lambda value: json.dumps(value, indent=2),
        "shell": shlex.quote,
    }
    return environment


def _all_entries(session: SessionConfig) -> dict[str, str]:
    """Returns the session config entries; the disabled optimizers are one of them."""
    entries = dict(session.entries)
    if session.disabled_optimizers:
        entries[_DISABLED_OPTIMIZERS] = ";".join(session.disabled_optimizers)
    return entries


def _heading(
    target: Target, name: str, config: str, lost: Collection[str], needs: Collection[str]
) -> str:
    """Returns the comment at the head of a file, with a line break at its end."""
    lines = [f"Written by: autotune export {config} --to {name}", "Do not edit; export again."]
    lines += [f"Its processor needs {need}" for need in needs]
    if lost:
        lines += ["This target cannot express:", *(f"  {part}" for part in lost)]
    return "".join(f"{target.comment} {printable(line)}\n" for line in lines)
