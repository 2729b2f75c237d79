"""Whether a config answers rightly on the processors where it will run.

The very loader that applications use opens the config, on this processor and under QEMU's user
mode emulation of others, which is slow and exact. The answers are compared with those of the
unoptimised model on this processor: of single samples, of samples in a batch with others, and of
samples with padding behind them. A kind of processor that nobody can emulate here is recorded as
not compared.
"""

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.deploy import cpu
from autotune.deploy.config import (
    COMPARED,
    FAILED,
    NOT_COMPARED,
    PROCESSORS,
    REFUSED,
    Certificate,
    TunedConfig,
)
from autotune.deploy.files import read_json
from autotune.deploy.records import Text, from_plain
from autotune.errors import (
    CannotMeasureError,
    FormatError,
    RequestError,
    StudyError,
    did_you_mean,
)
from autotune.export.python import modules_of
from autotune.facts.feeds import save_samples
from autotune.facts.inputs import workload_for
from autotune.facts.model import Model
from autotune.graph.parameters import STATIC_SHAPES
from autotune.graph.processor_facts import processor_facts
from autotune.measure.answers import OutputMismatchError, Outputs, compare
from autotune.measure.companions import Case, by_sample, cases_of
from autotune.measure.flatten import output_of
from autotune.measure.requests import read_outputs
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.results.subjects import lineup_of, outputs_of
from autotune.results.writing import write_json

ARM64_ROOT = "AUTOTUNE_ARM64_ROOT"
"""Environment variable: a root folder of ARM64 with ``usr/bin/python3`` and ``site-packages``."""

_CHILD = "autotune.results.certification_child"
_PROGRAM = "autotune.measure.elsewhere_child"
# Emulation takes about a hundred times as long as the processor.
_TIME_LIMIT_S = 900.0
_LARGEST_REPORT_BYTES = 1 << 20
# The emulator's processors, as /proc/cpuinfo would show them: QEMU shows the real one's.
_CPUINFO = {
    "avx2": "processor\t: 0\nmodel name\t: Haswell, emulated\n"
    "flags\t\t: fpu sse4_1 avx avx2 fma f16c\n\n",
    "arm64": "",  # the root folder has its own
}


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Where a config is run.

    Attributes:
        command: What begins the command line of a Python program there.
        paths: Folders of packages, after the loader's own.
    """

    words: Text
    command: Sequence[str]
    paths: Sequence[str]


def certify(
    path: Path,
    *,
    processors: Sequence[str] | None = None,
    source: Path | None = None,
    data: Path | None = None,
    shapes: Mapping[str, Sequence[int]],
) -> TunedConfig:
    """Compares a config's answers on kinds of processors; writes the config with what came of it.

    Args:
        processors: The kinds, of :data:`autotune.deploy.config.PROCESSORS`; if None, those
            on which the operators of its file depend, and this one.
        source: The untouched model; if None, the one that the study beside the config names.

    Raises:
        ConfigError: the config or its files are wrong, or it does not run on this machine.
        RequestError: there is no such kind of processor.
        CannotMeasureError: the unoptimised model does not run on this machine.
        StudyError: the config was replaced in the meantime.
    """
    check_kinds(processors or ())
    lineup = lineup_of([path], source, None)
    model, site = lineup.model, lineup.subjects[0].site
    config = TunedConfig.read(path)
    chosen = processors or _dependences(path.parent / config.model.file)
    batch = config.serving.batch if config.serving else None
    fixed = config.session.free_dimensions
    cases = cases_of(model, workload_for(model, data, shapes), fixed, batch)
    if config.configuration.get(STATIC_SHAPES):
        cases = cases[:1]  # the file takes single samples alone
    cases, references = _references(model, cases, outputs_of(config))
    certificates = [
        certificate
        for name in chosen
        for certificate in _certificates(name, path, cases, references, site)
    ]
    if TunedConfig.read(path) != config:  # it took minutes, and its model may be gone
        raise StudyError(f"{path} has changed while it was compared; nothing was written to it")
    config = replace(config, certified=tuple(certificates))
    write_json(config.to_json(), path)
    return config


def check_kinds(names: Sequence[str], before: str = "", more: str = "") -> None:
    """Refuses words that name no kind of processor; `before` and `more` are of the sentence.

    Raises:
        RequestError: there is one.
    """
    for name in names:
        if name not in PROCESSORS:
            near = did_you_mean(name, PROCESSORS)
            raise RequestError(
                f"{before}there is no kind of processor '{name}'.{near} Name some of "
                f"{', '.join(PROCESSORS)}{more}"
            )


def answers_rightly(certificates: Sequence[Certificate], max_error: float) -> bool:
    """Returns whether a config gave answers wherever it was opened, none with a larger error."""
    return all(item.outcome != FAILED and (item.error or 0.0) <= max_error for item in certificates)


def kind_here() -> str:
    """Returns the kind of this processor; empty where it is none that is known."""
    if platform.machine().lower() in {"aarch64", "arm64"}:
        return "arm64"
    if not cpu.is_x86():
        return ""
    if cpu.has_vnni():
        return "vnni"
    return {16: "avx512", 8: "avx2"}.get(cpu.weight_block(), "")


def _dependences(model: Path) -> tuple[str, ...]:
    """Returns the kinds of processors that may compute a file in different ways, this one first."""
    facts = processor_facts(model)
    here = (kind_here(),) if kind_here() else ()
    others = PROCESSORS if facts.eight_bits or facts.has_blocks else ()
    return tuple(dict.fromkeys((*here, *others)))


def _references(
    model: Model, cases: Sequence[Case], names: Sequence[str]
) -> tuple[list[Case], list[Sequence[Outputs]]]:
    """Returns the cases in which the unoptimised model runs, with its outputs in each of them.

    The outputs are those of single samples, without padding. An open first dimension need not be a
    batch: a model may run on single samples alone.
    """
    done = _run(_HERE, model.path, cases)
    if reason := done.refusal or done.faults[0]:
        raise CannotMeasureError(f"{model.path} does not run on this machine: {reason}")
    answers = [[_only(names, each) for each in runs] for runs in done.outputs]
    alone = answers[0]
    kept: list[Case] = []
    references: list[Sequence[Outputs]] = []
    for case, fault, runs in zip(cases, done.faults, answers, strict=True):
        try:
            outputs: Sequence[Outputs] = [] if fault else by_sample(runs, case.batch, alone)
        except OutputMismatchError:  # an output has no batch dimension
            continue
        if not fault:
            kept.append(case)
            references.append(outputs)
    return kept, references


def _only(names: Sequence[str], outputs: Outputs) -> Outputs:
    """Returns the outputs of these names; all of them if there is none."""
    return {n: array for n, array in outputs.items() if not names or output_of(n) in names}


def _certificates(
    name: str,
    path: Path,
    cases: Sequence[Case],
    references: Sequence[Sequence[Outputs]],
    site: Path | None,
) -> list[Certificate]:
    """Returns the answers of the config in the file `path` on one kind of processor.

    Args:
        site: The folder of another ONNX Runtime that the config needs; None for the user's own.
    """
    blank = Certificate(
        processor=name, outcome=NOT_COMPARED, how="", samples=0, batch=1, padding=0, error=None
    )
    place = _place(name)
    if site is not None and not isinstance(place, str):
        place = _with_runtime(place, site)
    if isinstance(place, str):
        return [replace(blank, how=place)]
    done = _run(place, path, cases)
    if done.refusal:
        return [replace(blank, outcome=REFUSED, how=f"{place.words}: {done.refusal}")]
    return [
        _judged(
            replace(blank, how=place.words, batch=case.batch, padding=case.padding),
            fault,
            runs,
            right,
        )
        for case, fault, runs, right in zip(
            cases, done.faults, done.outputs, references, strict=True
        )
    ]


def _judged(
    certificate: Certificate, fault: str, runs: Sequence[Outputs], references: Sequence[Outputs]
) -> Certificate:
    """Returns a certificate with the error of the outputs, or with the fault of the run."""
    try:
        if fault:
            raise OutputMismatchError(fault)
        error = compare(references, by_sample(runs, certificate.batch, references)).error
    except OutputMismatchError as mismatch:
        return replace(certificate, outcome=FAILED, how=f"{certificate.how}: {mismatch}")
    return replace(certificate, outcome=COMPARED, samples=len(references), error=error)


_HERE = Runner(
    words="on this processor", command=[sys.executable], paths=[p for p in sys.path if p]
)


def _place(name: str) -> Runner | str:
    """Returns where a kind of processor is run, or why it is not."""
    if name == kind_here():
        return _HERE
    if name not in _CPUINFO:
        return "QEMU does not emulate it, and this processor is another one"
    architecture = "aarch64" if name == "arm64" else "x86_64"
    programs = [f"qemu-{architecture}-static", f"qemu-{architecture}"]
    emulator = next(filter(None, map(shutil.which, programs)), None)
    if emulator is None:
        return f"no emulator is installed here; install {programs[0]}"
    if name == "avx2":
        if not cpu.is_x86():
            return "this machine has no packages for x86"
        python = os.path.realpath(sys.executable)
        return Runner(
            words="emulated: a Haswell of QEMU",
            command=[emulator, "-cpu", "Haswell", "-L", "{root}", python],
            paths=_HERE.paths,
        )
    root = os.environ.get(ARM64_ROOT)
    if not root:
        return f"{ARM64_ROOT} names no root folder of ARM64"
    return Runner(
        words="emulated: a Neoverse N1 of QEMU",
        # QEMU 7.2 emulates SME as well ("max"), with which DynamicQuantizeMatMul answers wrongly
        command=[emulator, "-cpu", "neoverse-n1", "-L", root, f"{root}/usr/bin/python3"],
        paths=[f"{root}/site-packages"],
    )


def _with_runtime(place: Runner, site: Path) -> Runner | str:
    """Returns a place with another ONNX Runtime in it, or why it cannot have it."""
    if place.paths != _HERE.paths:
        return f"{site.name} was added for this kind of machine alone"
    return replace(place, words=f"{place.words}, {site.name}", paths=[str(site), *place.paths])


@dataclass(frozen=True, kw_only=True)
class _Report:
    """What a program says of the runs of one file.

    Attributes:
        refusal: Why the loader refused the file, or the program ended; empty if neither.
        faults: Why the runs of each case failed; empty where they did not.
    """

    refusal: Text
    faults: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport(_Report):
    """The same with the outputs of each case, run by run; empty where they failed."""

    outputs: Sequence[Sequence[Outputs]] = ()


@dataclass(frozen=True, kw_only=True)
class _Ended:
    code: int
    words: Text


def _run(place: Runner, file: Path, cases: Sequence[Case]) -> RunReport:
    """Returns the outputs of a config or a model, from a process in a limited child."""
    with Child(_CHILD, memory_limit()) as child:
        folder = child.folder
        names = [(folder / f"{i}.npz", folder / f"{i}.out.npz") for i in range(len(cases))]
        for case, (samples, _) in zip(cases, names, strict=True):
            save_samples(case.feeds, samples)
        _write_program(folder / "lib")
        _write_cpuinfo(folder / "root")
        report = folder / "report.json"
        command = [
            *(part.format(root=folder / "root") for part in place.command),
            *("-P", "-s", "-m", _PROGRAM, str(file.resolve()), str(report)),
            *(str(name) for pair in names for name in pair),
        ]
        request = {
            "do": "run",
            "command": command,
            "environment": {"PYTHONPATH": os.pathsep.join([str(folder / "lib"), *place.paths])},
        }
        try:
            ended = child.request(request, _TIME_LIMIT_S, _Ended)
            if ended.code:
                return _failed(cases, f"it ended with exit code {ended.code}: {ended.words}")
            told = from_plain(_Report, read_json(report, _LARGEST_REPORT_BYTES))
            if told.refusal:
                return RunReport(refusal=told.refusal, faults=())
            outputs = [
                [] if fault else read_outputs(answers)
                for fault, (_, answers) in zip(told.faults, names, strict=True)
            ]
        except ChildFailure as failure:
            return _failed(cases, failure.message)
        except (FormatError, ValueError):  # a model may write what it likes
            return _failed(cases, "its report cannot be read")
        return RunReport(refusal="", faults=told.faults, outputs=outputs)


def _failed(cases: Sequence[Case], fault: str) -> RunReport:
    return RunReport(refusal="", faults=(fault,) * len(cases), outputs=[[]] * len(cases))


def _write_program(folder: Path) -> None:
    """Writes the program's modules, so that it runs where nothing of autotune is installed."""
    for name, source in modules_of(_PROGRAM):
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
        for package in (file.parent, folder / "autotune"):
            (package / "__init__.py").touch()


def _write_cpuinfo(root: Path) -> None:
    """Writes the file that takes the place of /proc/cpuinfo: QEMU looks into its root first."""
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(_CPUINFO["avx2"], encoding="utf-8")
