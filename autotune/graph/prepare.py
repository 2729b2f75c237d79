"""The model file that the graph parameters of a configuration ask for."""

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import autotune
from autotune.deploy import cpu
from autotune.deploy.files import digest_files
from autotune.deploy.options import OWN, RUNTIME, Value
from autotune.deploy.records import from_plain
from autotune.errors import FormatError
from autotune.facts.feeds import save_samples
from autotune.facts.model import Model
from autotune.facts.runtime import runtime
from autotune.facts.workload import Workload
from autotune.graph.cache import DEFAULT_LIMIT_BYTES, Cache
from autotune.graph.graph_facts import FILE, Converted, GraphFacts, Refusal
from autotune.graph.parameters import (
    OUTPUTS,
    PACKAGES,
    Condition,
    PlannedStep,
    graph_words,
    shared_passes,
    steps_of,
    values_with,
    wants_samples,
)
from autotune.process.child import ChildFailure, LastingChild
from autotune.process.durable import sync_file
from autotune.runtimes.environments import site_of

_CHILD = "autotune.graph.prepare_child"

# Among the facts of an entry: the digest of its files.
_SHA256 = "sha256"
# Calibrating a large model takes minutes; a shape inference may hang.
_TIME_LIMIT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model file that sessions are opened on.

    Attributes:
        path: The file; never written to once it is here.
        data_files: Its external data files, beside it.
        sha256: Digest of all these files' bytes.
        steps: What was done to the source, in words; empty if it is the source itself.
    """

    path: Path
    data_files: tuple[Path, ...]
    sha256: str
    steps: tuple[str, ...]
    graph_digest: str | None = None


class PreparationError(ChildFailure):
    """A set of graph parameters cannot be made; the message names the step.

    Attributes:
        unfit: The values with which no file of this model can be made, by parameter: where all of
            these parameters have one of their values. Empty where other options may do.
    """

    def __init__(self, kind: str, message: str, unfit: Condition | None = None) -> None:
        super().__init__(kind, message)
        self.unfit = unfit or {}

    @property
    def is_lasting(self) -> bool:
        """Whether another attempt would end in the same way; all but a refusal may go well."""
        return self.kind == "refused"


class Preparer:
    """Makes the files of one model's configurations, each once.

    Args:
        workload: Its calibration samples are used; None takes those that an earlier study with this
            `signature` left in `cache`.
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
        self._outcomes: dict[tuple[tuple[str, Value], ...], PreparedModel | PreparationError] = {}
        self._source: PreparedModel | None = None
        self.child = LastingChild(_CHILD)

    def prepare(self, half: Mapping[str, Value]) -> PreparedModel:
        """Returns the file for a set of graph parameters.

        A set of graph parameters without steps is the user's own file, untouched and not copied.

        Args:
            half: Graph parameters that differ from their default, by name.

        Raises:
            PreparationError: a step refuses the model, fails or takes too much.
            OSError: writing to disk failed.
        """
        steps = steps_of(half)
        if not steps:  # an option without its precision makes none
            return self._identity()
        key = tuple(sorted(half.items()))
        outcome = self._outcomes.get(key)
        # a file that was evicted is made again
        if outcome is None or (isinstance(outcome, PreparedModel) and not outcome.path.exists()):
            try:
                outcome = self._of_steps(steps, half)
            except PreparationError as error:
                if not error.is_lasting:
                    raise
                outcome = error
            self._outcomes[key] = outcome
        if isinstance(outcome, PreparationError):
            raise outcome
        self.cache.touch(outcome.path.parent)
        return outcome

    def looked_at(self, half: Mapping[str, Value]) -> PreparedModel:
        """Returns the same as :meth:`prepare`, with the facts of the source too."""
        prepared = self.prepare(half)
        if steps_of(half):
            return prepared
        if self._source is None:
            self._source = self._with_source_facts(prepared)
        return self._source

    def _with_source_facts(self, source: PreparedModel) -> PreparedModel:
        look = {"do": "look", "path": str(source.path)}
        try:
            with self.child.at_work() as child:
                facts = child.request(look, _TIME_LIMIT_S, GraphFacts)
        except ChildFailure:
            return source
        return replace(source, graph_digest=facts.graph_digest)

    def _identity(self) -> PreparedModel:
        model = self._model
        return PreparedModel(
            path=model.path.absolute(),
            data_files=model.data_files,
            sha256=model.sha256,
            steps=(),
        )

    def _of_steps(self, steps: tuple[PlannedStep, ...], half: Mapping[str, Value]) -> PreparedModel:
        maker = str(half.get(RUNTIME, OWN))
        key = self._key(maker, steps)
        kept = self._kept(key, half)
        if kept is None:
            self._convert(key, maker, steps, half)
            kept = self._kept(key, half)
        if kept is None:  # removed meanwhile, or the disk does not keep what is written
            raise PreparationError("failed", f"the file was lost from {self.cache.root}")
        files, sha256, facts = kept
        return PreparedModel(
            path=files[0],
            data_files=files[1:],
            sha256=sha256,
            steps=graph_words({name: v for name, v in half.items() if name != RUNTIME}),
            graph_digest=facts.graph_digest,
        )

    def _kept(
        self, key: str, half: Mapping[str, Value]
    ) -> tuple[tuple[Path, ...], str, GraphFacts] | None:
        """Returns the files under `key` in the cache, their digest and facts; None without any.

        An entry whose files are not those that were kept, as after a loss of power, is removed.

        Raises:
            PreparationError: a step refused the model before.
        """
        entry = self.cache.find(key)
        if entry is None:
            return None
        folder, content = entry
        files = _files(folder)
        try:
            if "refusal" in content:
                raise _refused(from_plain(Refusal, content["refusal"]), half)
            names = [field.name for field in fields(GraphFacts) if field.name in content]
            facts = from_plain(GraphFacts, {name: content[name] for name in names})
            if (sha256 := digest_files(files)) == content.get(_SHA256):
                return files, sha256, facts
        except (FormatError, OSError):
            pass
        self.cache.remove(key)
        return None

    def _convert(
        self, key: str, maker: str, steps: tuple[PlannedStep, ...], half: Mapping[str, Value]
    ) -> None:
        """Makes the files and keeps them in the cache, or the reason why they cannot be made."""
        before, rest = shared_passes(steps)
        files: tuple[Path, ...] = (self._model.path, *self._model.data_files)
        sha256 = self._model.sha256
        if before:
            # many sets of graph parameters share what these passes make, which may take long
            passed = self._of_steps(before, _of_passes(half))
            files, sha256 = (passed.path, *passed.data_files), passed.sha256
        with self.child.at_work(site_of(maker)) as child:
            source, result = child.folder / "source", child.folder / "result"
            source.mkdir()
            result.mkdir()
            # tools get a copy: what they write beside a model is not written beside the user's
            copies = [source / file.name for file in files]
            for file, copy in zip(files, copies, strict=True):
                shutil.copyfile(file, copy)
            if digest_files(copies) != sha256:
                raise PreparationError("failed", f"{files[0].name} was changed meanwhile")
            request = {
                "do": "convert",
                "source": str(copies[0]),
                "folder": str(result),
                "steps": [[step.name, dict(step.options)] for step in rest],
                "samples": str(self._calibration()) if wants_samples(rest) else None,
                "shared": self._shared(maker, before) if wants_samples(rest) else None,
            }
            try:
                reply = child.request(request, _TIME_LIMIT_S, Converted)
            except ChildFailure as failure:
                if failure.kind != "refused":
                    raise PreparationError(failure.kind, failure.message) from None
                refusal = Refusal(message=failure.message, step="", of_model=False)
                reply = Converted(refusal=refusal)
            if reply.refusal is not None:
                self.cache.keep(key, None, {"refusal": vars(reply.refusal)})
                raise _refused(reply.refusal, half)
            made = {**vars(reply.facts), _SHA256: digest_files(_files(result))}
            self.cache.keep(key, result, made)

    def _shared(self, maker: str, before: tuple[PlannedStep, ...]) -> list[str]:
        """Returns the folder of what all files that begin with these steps share.

        Behind it stands that of all files with the same outputs, whatever passes they begin with.
        Both are entries of the cache like any other. Children add to them.
        """
        of_model = tuple(step for step in before if step.name == OUTPUTS)
        folders = []
        for steps in (before, of_model):
            key = self._key(maker, steps, "shared", self._signature)
            entry = self.cache.find(key)
            folders.append(str(entry[0] if entry else self.cache.keep(key, None, {})))
        return folders

    def _calibration(self) -> Path:
        if not self._samples.is_file():
            if self._workload is None:
                raise PreparationError(
                    "failed", f"the calibration samples {self._samples} are gone"
                )
            self._samples.parent.mkdir(parents=True, exist_ok=True)
            # another worker of the study may write them at the same time
            beside = self._samples.with_name(f".{secrets.token_hex(6)}-{self._samples.name}")
            try:
                save_samples(self._workload.calibration, beside)
                sync_file(beside)
                beside.replace(self._samples)
            finally:
                beside.unlink(missing_ok=True)
        return self._samples

    def _key(self, maker: str, steps: tuple[PlannedStep, ...], *more: str) -> str:
        """Returns the name of the cache's entry: a digest of all that decides what is in it."""
        parts: list[Any] = [
            self._model.sha256,
            [[step.name, sorted(step.options.items())] for step in steps],
            # a step may be mended in a later version
            autotune.__version__,
            [*_of_maker(maker), *map(_version, ("onnx", *PACKAGES))],
            # weights are packed for it, and ranges of activations differ in their last digits
            [cpu.cpu_model(), sorted(cpu.cpu_features())],
        ]
        if wants_samples(steps):
            parts.append(self._signature)
        parts += more
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _of_passes(half: Mapping[str, Value]) -> dict[str, Value]:
    """Returns those of the graph parameters that decide on what the first passes make."""
    return {name: half[name] for name in (RUNTIME, OUTPUTS, "pre_pass") if name in half}


def _refused(refusal: Refusal, half: Mapping[str, Value]) -> PreparationError:
    """Returns the error of a set of graph parameters of which a step refuses the model."""
    unfit: dict[str, tuple[Value, ...]] = {}
    if refusal.of_model:
        unfit = dict(values_with(refusal.step))
        # what earlier steps made decides on what this one gets
        names = [step.name for step in steps_of(half)]
        earlier = names[: names.index(refusal.step)] if refusal.step in names else []
        for name in half.keys() - unfit:
            if any(step.name in earlier for step in steps_of({name: half[name]})):
                unfit[name] = (half[name],)
    return PreparationError("refused", refusal.message, unfit)


def _files(folder: Path) -> tuple[Path, ...]:
    """Returns the model's file in a folder, and its external data files."""
    return (folder / FILE, *sorted(folder.glob(f"{FILE}.*")))


def _of_maker(maker: str) -> tuple[str, ...]:
    """Returns what tells the ONNX Runtime that makes files from others."""
    return (runtime().version, runtime().build) if maker == OWN else (maker,)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
