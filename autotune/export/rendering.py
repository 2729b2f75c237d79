"""What an export writes, and what of a config a target cannot express. Standard library only."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autotune.deploy.options import ATTRIBUTES, Value
from autotune.deploy.providers import CPU
from autotune.deploy.session import SessionConfig

_DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
_ENV_ALLOCATORS = "session.use_env_allocators"


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a file that lies beside the config.

    Attributes:
        source: Its name.
        appended: Bytes that follow it in the copy.
    """

    source: str
    appended: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What an export writes.

    Attributes:
        texts: The text of each file, by its path relative to the output folder.
        lost: What the target cannot express, in words.
        use: How the result is used, as a sentence or a command.
        copies: The files that are copied, by the relative path of the copy.
    """

    texts: Mapping[str, str]
    lost: tuple[str, ...]
    use: str
    copies: Mapping[str, Copy] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Support:
    """The parts of a session that a target can express.

    Attributes:
        options: Names of the attributes of ``SessionOptions``.
        entries: Names of the session config entries; None means all.
        providers: ONNX Runtime's names of the execution providers, the CPU's apart.
        dimensions: Whether it takes sizes of named dimensions.
        allocator: Whether it can register the process-wide CPU allocator.
        run_entries: Whether it takes run config entries.
    """

    options: Collection[str] = frozenset(ATTRIBUTES)
    entries: Collection[str] | None = None
    providers: Collection[str] = ()
    dimensions: bool = True
    allocator: bool = True
    run_entries: bool = True

    def options_of(self, session: SessionConfig) -> dict[str, Value]:
        """Returns the changed attributes of ``SessionOptions`` that the target takes."""
        changed = changed_options(session)
        return {name: value for name, value in changed.items() if name in self.options}

    def providers_of(self, session: SessionConfig) -> dict[str, dict[str, str]]:
        """Returns the execution providers that the target takes, the CPU's apart."""
        return {
            name: dict(options)
            for name, options in session.providers
            if name != CPU and name in self.providers
        }

    def entries_of(self, session: SessionConfig) -> dict[str, str]:
        """Returns the session config entries that the target takes.

        The disabled optimizers are one of them. Without the process-wide allocator the entry that
        asks for it would have no meaning.
        """
        return {
            name: text
            for name, text in _all_entries(session).items()
            if (self.entries is None or name in self.entries)
            and (self.allocator or name != _ENV_ALLOCATORS)
        }

    def lost(self, session: SessionConfig) -> tuple[str, ...]:
        """Returns the parts of `session` that the target cannot express, in words."""
        lost = [
            f"session option {name}={value}"
            for name, value in changed_options(session).items()
            if name not in self.options
        ]
        kept = self.entries_of(session)
        lost += [
            f"session config entry {name}={text}"
            for name, text in _all_entries(session).items()
            if name not in kept and name != _ENV_ALLOCATORS
        ]
        lost += [
            f"execution provider {name} with {dict(options)}"
            for name, options in session.providers
            if name != CPU and name not in self.providers
        ]
        if session.provider_cache:
            lost.append(f"folder {session.provider_cache} of models that the provider compiled")
        if not self.dimensions:
            lost += [f"dimension {name}={size}" for name, size in session.free_dimensions.items()]
        if not self.allocator and session.env_allocator:
            lost.append(f"process-wide CPU allocator with {dict(session.env_allocator)}")
        if not self.run_entries:
            lost += [f"run option {name}={text}" for name, text in session.run_entries.items()]
        return tuple(lost)


def changed_options(session: SessionConfig) -> dict[str, Value]:
    """Returns the attributes of ``SessionOptions`` that differ from ONNX Runtime's defaults."""
    return {
        name: value for name, value in session.options.items() if value != ATTRIBUTES[name].default
    }


def _all_entries(session: SessionConfig) -> dict[str, str]:
    entries = dict(session.entries)
    if session.disabled_optimizers:
        entries[_DISABLED_OPTIMIZERS] = ";".join(session.disabled_optimizers)
    return entries


def heading(config: str, target: str, lost: tuple[str, ...], mark: str) -> str:
    """Returns the comment at the head of a generated file, with a line break at its end.

    Args:
        config: Name of the config's file.
        target: The target's name.
        lost: What the target cannot express.
        mark: What begins a comment line.
    """
    lines = [f"Written by: autotune export {config} --to {target}", "Do not edit; export again."]
    if lost:
        lines += ["This target cannot express:", *(f"  {part}" for part in lost)]
    return "".join(f"{mark} {printable(line)}\n" for line in lines)


def printable(line: str) -> str:
    """Returns a line that ends no comment and goes on in no other, whatever a model's names hold.

    A backslash at the end of a comment joins the next line to it in C++, and Java decodes escapes
    in comments.
    """
    return "".join(c if c.isascii() and c.isprintable() and c != "\\" else "?" for c in line)
