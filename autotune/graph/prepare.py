"""The model file that a candidate's graph half asks for."""

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.deploy import cpu, options
from autotune.deploy.digest import digest_files
from autotune.deploy.records import to_plain
from autotune.facts.feeds import save_samples
from autotune.facts.model import Model
from autotune.facts.runtime import runtime
from autotune.facts.workload import Workload
from autotune.graph.cache import DEFAULT_LIMIT_BYTES, Cache
from autotune.graph.graph_facts import GraphFacts
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.space.candidate import BASELINE, Candidate

_CHILD = "autotune.graph.prepare_child"
FILE = "best.onnx"
"""Name of every prepared model: under it the winner is emitted, its data as ``best.onnx.data``."""

# Calibrating by entropy on a large model takes minutes; a shape inference may hang.
_TIME_LIMIT_S = 900.0
# What these steps write belongs to this kind of processor.
_OF_THIS_CPU = frozenset({"ort_all", "prepacked"})
_QUANTISING = frozenset({"int8_dynamic", "int8_static", "int8_weight_only", "int4_weight_only"})
_INT8 = frozenset({"per_channel", "reduce_range", "kept_in_float"})
_WEIGHTS = frozenset({"block_size", "accuracy_level", "kept_in_float"})
# What of a graph half is an option of its precision.
_OPTIONS: Mapping[str, frozenset[str]] = {
    "fp16": frozenset(),
    "fp16_mixed": frozenset(),
    "int8_dynamic": _INT8,
    "int8_static": _INT8 | {"calibration", "symmetric", "quantized_operators"},
    "int8_weight_only": _WEIGHTS,
    "int4_weight_only": _WEIGHTS,
}
_LATE = frozenset({"ort_basic", "ort_extended", "ort_all"})
_PACKAGES = (*("onnx", "onnxslim", "onnxsim", "onnxoptimizer", "onnxscript", "onnx-ir"),)

Step = tuple[str, Mapping[str, options.Value]]
"""Name of a step and its options."""


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model file that sessions are opened on.

    Attributes:
        path: The file; never written to once it is here.
        data_files: Its external data files, beside it.
        sha256: Digest of all these files' bytes.
        steps: What was done to the source, in words; empty if it is the source itself.
        operators: Nodes of its main graph; None where nobody looked.
        parameters: Elements of its initializers; likewise.
        size_bytes: Of all its files.
        graph_digest: The same for models that ONNX Runtime optimises to the same graph; None where
            that is not known.
    """

    path: Path
    data_files: tuple[Path, ...]
    sha256: str
    steps: tuple[str, ...]
    operators: int | None = None
    parameters: int | None = None
    size_bytes: int = 0
    graph_digest: str | None = None


class PreparationError(Exception):
    """A graph half cannot be made. Data for the caller, not an error of the user.

    Attributes:
        kind: As :class:`autotune.process.child.ChildFailure` has it.
        message: What happened, in a sentence that names the step.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Preparer:
    """Makes the files of one model's candidates, each once.

    Args:
        model: The model.
        cache: Folder where prepared models are kept.
        workload: Whose calibration samples are used; None takes those that an earlier study with
            this `signature` left in `cache`.
        signature: Of the workload.
    """

    def __init__(
        self, model: Model, cache: Path, *, workload: Workload | None, signature: str
    ) -> None:
        self._model = model
        # children work in folders of their own: a relative path would lead them elsewhere
        cache = cache.resolve()
        self.cache = Cache(cache, max(DEFAULT_LIMIT_BYTES, 8 * model.size_bytes))
        self._workload = workload
        self._signature = signature
        self._samples = cache / f"calibration-{signature}.npz"
        self._done: dict[Candidate, PreparedModel | PreparationError] = {}
        self._source: PreparedModel | None = None

    def prepare(self, candidate: Candidate) -> PreparedModel:
        """Returns the file for the graph half of `candidate`.

        An empty graph half is the user's own file, untouched and not copied.

        Raises:
            PreparationError: a step refuses the model, fails or takes too much.
            OSError: the disk gave out.
        """
        half = candidate.graph
        if half == BASELINE:
            return self._identity()
        # a file that was evicted is made again
        known = self._done.get(half)
        if known is None or (isinstance(known, PreparedModel) and not known.path.exists()):
            try:
                known = self._made(steps_of(half), half.in_words())
            except PreparationError as error:
                known = error
            self._done[half] = known
        if isinstance(known, PreparationError):
            raise known
        self.cache.touch(known.path.parent)
        return known

    def looked_at(self, candidate: Candidate) -> PreparedModel:
        """Returns the same as :meth:`prepare`, with operators and parameters of the source too."""
        prepared = self.prepare(candidate)
        if prepared.steps or self._source is not None:
            return prepared if prepared.steps else self._source or prepared
        with Child(_CHILD, memory_limit()) as child:
            try:
                look = {"do": "look", "path": str(prepared.path)}
                facts = to_plain(child.request(look, _TIME_LIMIT_S, GraphFacts))
            except ChildFailure:
                facts = {}
        self._source = _with_facts(prepared, facts)
        return self._source

    def _identity(self) -> PreparedModel:
        model = self._model
        return PreparedModel(
            path=model.path.resolve(),
            data_files=model.data_files,
            sha256=model.sha256,
            steps=(),
            size_bytes=model.size_bytes,
        )

    def _made(self, steps: tuple[Step, ...], words: str) -> PreparedModel:
        key = self._key(steps)
        folder, facts = self.cache.find(key) or self._convert(key, steps)
        if "refusal" in facts:
            raise PreparationError(str(facts["kind"]), str(facts["refusal"]))
        path = folder / FILE
        data_files = tuple(sorted(file for file in folder.glob(f"{FILE}.*")))
        plain = PreparedModel(
            path=path,
            data_files=data_files,
            sha256=digest_files((path, *data_files)),
            steps=tuple(words.split(", ")),
        )
        return _with_facts(plain, facts)

    def _convert(self, key: str, steps: tuple[Step, ...]) -> tuple[Path, dict[str, Any]]:
        with Child(_CHILD, memory_limit()) as child:
            source, result = child.folder / "source", child.folder / "result"
            source.mkdir()
            result.mkdir()
            # tools get a copy: what they write beside a model is not written beside the user's
            copies = [source / f.name for f in (self._model.path, *self._model.data_files)]
            for file, copy in zip((self._model.path, *self._model.data_files), copies, strict=True):
                shutil.copyfile(file, copy)
            if digest_files(copies) != self._model.sha256:
                raise PreparationError("refused", f"{self._model.path.name} was changed meanwhile")
            request = {
                "do": "convert",
                "source": str(source / self._model.path.name),
                "folder": str(result),
                "steps": [[name, dict(chosen)] for name, chosen in steps],
                "samples": str(self._calibration()) if _wants_samples(steps) else None,
            }
            try:
                facts = to_plain(child.request(request, _TIME_LIMIT_S, GraphFacts))
            except ChildFailure as failure:
                if failure.kind != "refused":  # another time, or on a free machine, it may go well
                    raise PreparationError(failure.kind, failure.message) from None
                facts = {"kind": failure.kind, "refusal": failure.message}
                return self.cache.keep(key, None, facts), facts
            return self.cache.keep(key, result, facts), facts

    def _calibration(self) -> Path:
        if not self._samples.is_file():
            if self._workload is None:
                raise PreparationError(
                    "refused", f"the calibration samples {self._samples} are gone"
                )
            self._samples.parent.mkdir(parents=True, exist_ok=True)
            beside = self._samples.with_name(f".{self._samples.name}")
            save_samples(self._workload.calibration, beside)
            beside.replace(self._samples)
        return self._samples

    def _key(self, steps: tuple[Step, ...]) -> str:
        told: list[Any] = [
            self._model.sha256,
            [[name, sorted(chosen.items())] for name, chosen in steps],
            [runtime().version, runtime().build, *map(_version, _PACKAGES)],
        ]
        if not _OF_THIS_CPU.isdisjoint(name for name, _ in steps):
            told.append([cpu.cpu_model(), sorted(cpu.cpu_features())])
        if _wants_samples(steps):
            told.append(self._signature)
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


def steps_of(half: Candidate) -> tuple[Step, ...]:
    """Returns what is done to the model for a graph half, in order.

    Pre-passes first, then precision; ONNX Runtime's own optimisation after that, for it writes
    operators that quantisation does not know; the storage form last.
    """
    values = half.to_json()
    passes = str(values.pop("pre_pass", "none")).split("+")
    precision = str(values.pop("precision", "fp32"))
    storage = str(values.pop("storage", "inline"))
    steps: list[Step] = [(name, {}) for name in passes if name not in _LATE and name != "none"]
    if precision != "fp32":
        steps.append((precision, {k: v for k, v in values.items() if k in _OPTIONS[precision]}))
    steps += [(name, {}) for name in passes if name in _LATE]
    if storage != "inline":
        steps.append((storage, {}))
    return tuple(steps)


def needed_features(half: Candidate, features: Collection[str]) -> tuple[str, ...]:
    """Returns the CPU features without which a graph half made here is slower or wrong elsewhere.

    Eight-bit products saturate on x86 without VNNI; what ONNX Runtime optimised or packed for this
    processor has its blocks.

    Args:
        half: The graph half.
        features: Those of the processor it was made on.
    """
    names = {name for name, _ in steps_of(half)}
    needed = []
    reduced = half.to_json().get("reduce_range", False)
    if not names.isdisjoint({"int8_static", "int8_dynamic"}) and not reduced:
        needed += [name for name in ("avx512_vnni", "avx_vnni") if name in features][:1]
    if not names.isdisjoint(_OF_THIS_CPU):
        needed += [name for name in ("avx512f", "avx2") if name in features][:1]
    return tuple(needed)


def _wants_samples(steps: tuple[Step, ...]) -> bool:
    return any(name in _QUANTISING or name == "fp16_mixed" for name, _ in steps)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _with_facts(prepared: PreparedModel, facts: Mapping[str, Any]) -> PreparedModel:
    return PreparedModel(
        path=prepared.path,
        data_files=prepared.data_files,
        sha256=prepared.sha256,
        steps=prepared.steps,
        operators=facts.get("operators"),
        parameters=facts.get("parameters"),
        size_bytes=facts.get("size_bytes", prepared.size_bytes),
        graph_digest=facts.get("graph_digest"),
    )
