"""The user's model: its files, its inputs, and the facts that decide which parameters matter.

The file is parsed in a limited child process (:mod:`autotune.facts.model_child`); this side hashes
bytes and reads numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.deploy.decoder import HeadSizes
from autotune.deploy.files import digest_files, open_file
from autotune.deploy.kinds import MODEL, mistaken
from autotune.deploy.options import OPTIMIZERS
from autotune.deploy.session import SessionConfig
from autotune.errors import FormatError, ModelError, shown
from autotune.facts.decoder_files import head_sizes
from autotune.facts.feeds import Feed, save_samples
from autotune.facts.model_facts import NO_MODEL, Breaking, ModelFacts
from autotune.facts.runtime import without_places
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.facts.model_child"
# Opening a model and optimising it once; a 2 GiB model on a slow disk takes a minute.
_TIME_LIMIT_S = 600
_LARGEST_CHECKED_BYTES = 512 << 20
_SAMPLE = "sample.npz"


@dataclass(frozen=True, kw_only=True)
class Model(ModelFacts):
    """A model file and its contents.

    Attributes:
        sha256: Digest of the bytes of all its files.
        head_sizes: What the files of exporters beside it say of its caches.
    """

    path: Path
    sha256: str
    size_bytes: int
    head_sizes: HeadSizes = field(default_factory=HeadSizes)

    @property
    def data_files(self) -> tuple[Path, ...]:
        """Its external data files, beside it."""
        return tuple(self.path.parent / name for name in self.data_names)

    @property
    def default_session(self) -> SessionConfig:
        """How the default opens the model: with ONNX Runtime's own options, as far as it can."""
        return SessionConfig(disabled_optimizers=self.breaking)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user must know of it, a sentence each."""
        if not self.breaking:
            return ()
        names = " and ".join(self.breaking)
        sentence = (
            f"ONNX Runtime's own optimisation {names} breaks this model, which is valid: it is off "
            "in the default and in every configuration (optimization.disable_specified_optimizers)"
        )
        return (sentence,)

    @property
    def is_dynamic(self) -> bool:
        """Whether some input leaves a dimension open."""
        return any(tensor.is_dynamic for tensor in self.inputs)


def describe(path: Path, pairs: Mapping[str, str] | None = None) -> Model:
    """Returns the model in the file `path`.

    Args:
        pairs: Outputs that are inputs of the next step, by the names of the inputs, where the user
            names them.

    Raises:
        ModelError: there is no such file, or ONNX Runtime cannot run it; the message says why.
    """
    try:
        open_file(path).close()
    except FormatError as error:
        raise ModelError(mistaken(path, MODEL) or f"cannot read {path}: {error}") from None
    with Child(_CHILD, memory_limit()) as child:
        # not resolved: the data of a link, as in Hugging Face's cache, lie beside the link
        request = {"do": "inspect", "path": str(path.absolute()), "pairs": dict(pairs or {})}
        try:
            facts = child.request(request, _TIME_LIMIT_S, ModelFacts)
        except ChildFailure as failure:
            raise ModelError(_refusal(path, failure)) from None
    _check_names(path, facts)
    heads = HeadSizes()
    if facts.decoder is not None:
        heads = head_sizes(path.parent)
        facts = replace(facts, decoder=facts.decoder.completed(heads, {}))
    files = [path, *(path.parent / name for name in facts.data_names)]
    return Model(
        **vars(facts),
        path=path,
        sha256=digest_files(files),
        size_bytes=sum(file.stat().st_size for file in files),
        head_sizes=heads,
    )


def without_breaking(model: Model, sample: Feed) -> Model:
    """Returns the model with the optimisations of ONNX Runtime off that break it on a sample.

    A large model stays as it is: opening it again takes too long.
    """
    names = [tensor.name for tensor in model.inputs]
    if model.size_bytes > _LARGEST_CHECKED_BYTES or not set(names) <= sample.keys():
        return model
    try:
        with Child(_CHILD, memory_limit()) as child:
            path = child.folder / _SAMPLE
            save_samples([{name: sample[name] for name in names}], path)
            request = {
                "do": "find_breaking",
                "path": str(model.path.absolute()),
                "sample": str(path),
                "off": list(model.breaking),
            }
            breaking = child.request(request, _TIME_LIMIT_S, Breaking).names
    except ChildFailure:  # what measures the default says more
        return model
    # a reply is a stranger's, and these become options of sessions
    return replace(model, breaking=tuple(sorted(OPTIMIZERS.intersection(breaking))))


def _check_names(path: Path, facts: ModelFacts) -> None:
    """Refuses names over several lines, which could pass for lines of our own output.

    ONNX wants identifiers of C90 for names; exporters use other characters, but no line breaks.

    Raises:
        ModelError: an input, an output or a dimension has such a name.
    """
    dimensions = (size for tensor in facts.inputs for size in tensor.shape)
    names = [*(tensor.name for tensor in facts.inputs), *facts.outputs, *dimensions]
    for name in names:
        if isinstance(name, str) and len(f"{name}.".splitlines()) > 1:
            raise ModelError(f"{path} has a line break in the name {shown(name)}; rename it")


def _refusal(path: Path, failure: ChildFailure) -> str:
    """Returns one sentence that says why the model cannot be used."""
    text = failure.message
    if failure.kind == "timeout":
        return f"{path} could not be opened within {_TIME_LIMIT_S} s"
    if failure.kind == "out_of_memory":
        return f"{path} needs more memory to open than this machine has free: {text}"
    if failure.kind == "crashed" and re.search(r": (Import|ModuleNotFound)Error: ", text):
        return f"a package of this environment is broken ({text}); install it again"
    if failure.kind != "refused":
        return f"{path} makes ONNX Runtime end abruptly ({text}); the file may be damaged"
    if match := re.search(r"No Op registered for (\S+) with domain_version of ([0-9]+)", text):
        return (
            f"{path} uses the operator '{match[1]}', which ONNX Runtime does not have at opset "
            f"{match[2]}; export the model without it or with another opset"
        )
    if match := re.search(r"(\S+?)(?:\(-?[0-9]+\))? is not a registered function/op", text):
        return (
            f"{path} uses the operator '{match[1]}', which ONNX Runtime does not have; "
            "models with custom operators cannot be tuned"
        )
    if match := re.search(r"Could not find an implementation for (\w+)\(([0-9]+)\)", text):
        return (
            f"{path} uses the operator '{match[1]}' with a type for which ONNX Runtime has no "
            "kernel on the CPU; export the model with another type"
        )
    if match := re.search(r"Opset ([0-9]+) is under development.*?till opset ([0-9]+)", text):
        return (
            f"{path} uses opset {match[1]}, and this ONNX Runtime knows opsets up to {match[2]}; "
            "upgrade onnxruntime or export the model with an older opset"
        )
    if match := re.search(r"Unsupported model IR version: ([0-9]+), max.*?: ([0-9]+)", text):
        return (
            f"{path} has IR version {match[1]}, and this ONNX Runtime reads versions up to "
            f"{match[2]}; upgrade onnxruntime or save the model with an older IR version"
        )
    reason = re.sub(r"^Load model from .* failed:", "", without_places(text))
    words = f"{path} cannot be used: {reason}"
    return (mistaken(path, MODEL) or words) if reason.startswith(NO_MODEL) else words
