"""Whether files that were made here answer rightly on other processors: a table of errors.

    python benchmarks/travel.py [MODEL ...] --to benchmarks/results/travel.txt
    python benchmarks/travel.py [MODEL ...] --precisions int8_nncf --to ... --append

Every precision and storage form of the default preset, of models (with NAME_inputs.npz beside
NAME.onnx, or generated inputs) and of all sample models, written here as a study writes them, and
answered by the loader on this processor and under emulation (`autotune certify`). A cell is wrong
where its error is more than a tenth, and more than 0.01, above the error on this processor. The
first rows are files with weights in blocks: those of another processor must be refused.
"""

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnxruntime
from inputs import file_beside, workload_of

import autotune
from autotune.deploy import cpu
from autotune.deploy.config import (
    COMPARED,
    FAILED,
    REFUSED,
    Certificate,
    DataFile,
    Environment,
    Evidence,
    Interval,
    ModelFile,
    TunedConfig,
)
from autotune.deploy.options import Value
from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.model import describe
from autotune.graph.prepare import PreparationError, Preparer
from autotune.graph.processor_facts import processor_facts, requirements
from autotune.results.certification import certify, kind_here

_SPACE = Path(__file__).parents[1] / "search_spaces" / "default.toml"
_EVIDENCE = Evidence(
    latency_ms=1.0,
    baseline_latency_ms=1.0,
    speedup=Interval(value=1.0, low=1.0, high=1.0),
    peak_memory_mib=1.0,
    baseline_peak_memory_mib=1.0,
    cpu_s=0.0,
    baseline_cpu_s=0.0,
    load_ms=1.0,
    baseline_load_ms=1.0,
    p99_ms=None,
    baseline_p99_ms=None,
    error=0.0,
    agreement=None,
    metric=None,
    error_data="generated",
    rounds=0,
    significant=False,
    steady=True,
    noise_floor=0.0,
    trial=0,
)


def forms(wanted: Sequence[str]) -> Iterator[dict[str, Value]]:
    """Yields the graph parameters of each storage form with each precision, scales included.

    Args:
        wanted: Names of precisions; all of them if it is empty.
    """
    parameters = tomllib.loads(_SPACE.read_text("utf-8"))["parameters"]
    precisions: list[dict[str, Value]] = []
    names = parameters["precision"]["values"]
    for name in [name for name in names if not wanted or name in wanted]:
        plain: dict[str, Value] = {} if name == "fp32" else {"precision": name}
        precisions.append(plain)
        if name in ("int8_static", "int8_dynamic"):
            precisions.append({**plain, "per_channel": True})
    for storage, precision in itertools.product(parameters["weight_storage"]["values"], precisions):
        yield {**precision, **({} if storage == "inline" else {"weight_storage": storage})}


def write(half: Mapping[str, Value], preparer: Preparer, sha256: str, folder: Path) -> Path:
    """Writes a config of a form as a study does; returns its file."""
    prepared = preparer.prepare(half)
    folder.mkdir(parents=True)
    for file in (prepared.path, *prepared.data_files):
        shutil.copy(file, folder)
    model = folder / prepared.path.name
    session = SessionConfig()
    config = TunedConfig(
        model=ModelFile(
            **vars(DataFile.of(model)),
            source_sha256=sha256,
            steps=prepared.steps,
            data_files=tuple(DataFile.of(folder / file.name) for file in prepared.data_files),
        ),
        session=session,
        evidence=_EVIDENCE,
        requires=requirements(session, processor_facts(model)),
        environment=Environment(
            autotune=autotune.__version__,
            onnxruntime=onnxruntime.__version__,
            cpu=cpu.cpu_model(),
            cores=cpu.usable_cores(),
            fingerprint="",
        ),
        configuration=dict(half),
    )
    path = folder / "best.json"
    path.write_text(json.dumps(config.to_json()), encoding="utf-8")
    return path


def with_blocks(source: Path, sha256: str, folder: Path) -> Path:
    """Writes a config of a file with weights in the blocks of this processor."""
    folder.mkdir(parents=True)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(folder / "blocks.onnx")
    onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    model = describe(folder / "blocks.onnx")
    preparer = Preparer(model, folder / "cache", workload=None, signature="")
    return write({}, preparer, sha256, folder / "config")


def is_wrong(item: Certificate, native: float) -> bool:
    """Returns whether a config answers wrongly without a refusal."""
    if item.outcome == FAILED:
        return True
    return item.error is not None and item.error > max(1.1 * native, native + 0.01)


def row(name: str, form: str, items: tuple[Certificate, ...]) -> tuple[str, int, int]:
    """Returns a line of the table, how many of its cells are wrong, and how many were compared."""
    here = {(i.batch, i.padding): i.error for i in items if i.processor == kind_here()}
    cells, wrong = [], 0
    for item in items:
        fault = is_wrong(item, here.get((item.batch, item.padding)) or 0.0)
        wrong += fault
        called = "" if item.batch == 1 else f"/{item.batch}"
        called += f"+{item.padding}" if item.padding else ""
        text = item.outcome if item.error is None else f"{item.error:.2g}"
        cells.append(f"{item.processor}{called} {text}{' WRONG' if fault else ''}")
    compared = sum(item.outcome in (COMPARED, REFUSED) for item in items)
    return f"{name:<22} {form:<42} {', '.join(cells)}", wrong, compared


class Table:
    """The lines of the output, written to a file as they come.

    Args:
        to: The file; None writes none.
        kinds: The kinds of processors.
        before: What the file begins with: the tables of earlier runs.
    """

    def __init__(self, to: Path | None, kinds: tuple[str, ...], before: str = "") -> None:
        self._to, self._before = to, before
        self.wrong = self._compared = 0
        self._lines = [
            f"$ python benchmarks/travel.py {' '.join(sys.argv[1:])}",
            "Relative L2 errors against the unoptimised model on this processor, a cell for each",
            "kind of processor ('/4': in a batch with others, '+8': with padding behind).",
            f"Here: {cpu.cpu_model()} ({kind_here()}), ONNX Runtime {onnxruntime.__version__}.",
            f"Kinds: {', '.join(kinds)}. QEMU emulates neither AVX-512 nor VNNI.",
            "",
        ]

    def add(self, line: str, wrong: int, compared: int) -> None:
        """Adds a row with so many cells."""
        self.wrong += wrong
        self._compared += compared
        self._lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if self._to:
            end = (
                f"{self._compared} cells compared or refused, {self.wrong} wrong without a refusal"
            )
            text = "\n".join([*self._lines, "", end, ""])
            self._to.write_text(self._before + text, encoding="utf-8")


def add_form(
    table: Table, source: Path, half: Mapping[str, Value], folder: Path, kinds: tuple[str, ...]
) -> None:
    """Adds the row of one form of a model."""
    model = describe(source)
    workload = workload_of(source, model)
    preparer = Preparer(model, folder / "cache", workload=workload, signature="s")
    form = words_of(half)
    try:
        path = write(half, preparer, model.sha256, folder / form.replace(" ", "-"))
    except PreparationError as error:
        table.add(f"{source.stem:<22} {form:<42} not made: {error.message[:60]}", 0, 0)
        return
    done = certify(path, processors=kinds, source=source, data=file_beside(source), shapes={})
    table.add(*row(source.stem, form, done.certified))


def words_of(half: Mapping[str, Value]) -> str:
    """Returns a form in words."""
    return " ".join(k if v is True else str(v) for k, v in half.items()) or "fp32"


def add_blocks(table: Table, source: Path, folder: Path, kinds: tuple[str, ...]) -> None:
    """Adds a file with weights in the blocks of this processor, and one of another's."""
    path = with_blocks(source, describe(source).sha256, folder)
    done = certify(path, processors=kinds, source=source, shapes={})
    table.add(*row(source.stem, "blocks of this processor", done.certified))
    data = json.loads(path.read_text("utf-8"))
    data["requires"]["weight_block"] = 24 - data["requires"]["weight_block"]
    path.write_text(json.dumps(data), encoding="utf-8")
    blocks = f"blocks of {data['requires']['weight_block']}"
    name = f"{source.stem:<22} {blocks:<42}"
    try:
        autotune.load(path)
        table.add(f"{name} opened WRONG", 1, 1)
    except autotune.ConfigError as error:
        table.add(f"{name} refused: {str(error).partition('processor: ')[2]}", 0, 1)


def main() -> None:
    """Writes the table; ends with exit code 1 where a cell is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--samples", default=",".join(sample_models.KINDS), help="sample models")
    parser.add_argument("--precisions", default="", help="such as fp32,int8_nncf; else all")
    parser.add_argument("--only", default="", help="forms whose words hold this text")
    parser.add_argument("--on", default="avx2", help="kinds of processors beside this one")
    parser.add_argument("--to", type=Path, help="file of the table")
    parser.add_argument("--append", action="store_true", help="keep the tables that are in it")
    options = parser.parse_args()
    kinds = tuple(dict.fromkeys((kind_here(), *options.on.split(","))))
    keeps = options.append and options.to and options.to.exists()
    table = Table(options.to, kinds, f"{options.to.read_text('utf-8')}\n" if keeps else "")
    precisions = [name for name in options.precisions.split(",") if name]
    with tempfile.TemporaryDirectory() as scratch:
        sources = list(options.models)
        for kind in filter(None, options.samples.split(",")):
            sources.append(Path(scratch) / f"{kind}.onnx")
            sample_models.write(kind, sources[-1])
            if kind == "cnn":
                add_blocks(table, sources[-1], Path(scratch) / "blocks", kinds)
        # a run that is ended early has all models
        for half, source in itertools.product(forms(precisions), sources):
            if options.only in words_of(half):
                add_form(table, source, half, Path(scratch) / f"{source.stem}.files", kinds)
    sys.exit(1 if table.wrong else 0)


if __name__ == "__main__":
    main()
