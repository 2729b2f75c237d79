"""Recorded tables: a whole space of one model, measured once, to search again without a machine.

A recording is a file of JSON lines, gzipped once it is whole: first what was recorded and where,
then a line for each measurement. A configuration may be measured several times; what is near the
front is, because the best of a thousand noisy numbers was lucky as well as good. The first of them
is a short one, as in a search, and what follows are longer ones, as in a final comparison.
"""

import gzip
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.deploy.loaded import Environment
from autotune.measure.outcome import Failure, Measurement
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Condition, Parameter, Space

FORMAT = "autotune-recording/1"
# What luck is drawn for; answers have none.
_LUCKY = ("latency_ms", "peak_memory_mib", "load_ms", "cpu_s")


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of one measurement of a recorded configuration.

    Attributes:
        latency_ms: As a study counts it.
        half_width: Of the latency's 95 % interval, relative to it.
        peak_memory_mib: What the session adds at its highest.
        load_ms: Creating the session.
        cpu_s: CPU time of a run.
        error: Fidelity error.
    """

    latency_ms: float
    half_width: float
    peak_memory_mib: float
    load_ms: float
    cpu_s: float
    error: float

    @classmethod
    def of(cls, measurement: Measurement) -> "Numbers":
        """Returns what of a measurement is recorded, rounded to what can be known."""
        ratio = measurement.ratio
        numbers = cls(
            latency_ms=measurement.latency_ms,
            half_width=(ratio.high - ratio.low) / 2 / ratio.value,
            peak_memory_mib=measurement.peak_memory_mib,
            load_ms=measurement.load_ms,
            cpu_s=measurement.cpu_s,
            error=measurement.fidelity.error,
        )
        return cls(**{name: float(f"{value:.5g}") for name, value in asdict(numbers).items()})


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was recorded, and where.

    Attributes:
        model: Name of the model's file.
        model_sha256: Its digest.
        workload: Signature of the inputs.
        recorded: Day, as in 2026-11-21.
        environment: The machine.
        machine: What kind of machine this stands for, in words; ``simulated`` in it where it is
            not simply the machine as it was.
        reference_ms: Latency of the baseline that ratios were multiplied with.
        max_error: Largest fidelity error that is admitted; those up to four times as far off were
            timed as well.
        space: The parameters, resolved.
    """

    model: str
    model_sha256: str
    workload: str
    recorded: str
    environment: Environment
    machine: str
    reference_ms: float
    max_error: float
    space: Space

    def to_json(self) -> dict[str, Any]:
        """Returns the first line of the file."""
        parameters = [
            {**asdict(p), "when": dict(p.when), "unless": dict(p.unless)}
            for p in self.space.parameters
        ]
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "environment": asdict(self.environment),
            "space": {
                "name": self.space.name,
                "parameters": parameters,
                "impossible": [dict(condition) for condition in self.space.impossible],
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Header":
        """Returns the header that :meth:`to_json` gave.

        Raises:
            ValueError: it is of another format.
        """
        if data.get("format") != FORMAT:
            raise ValueError(f"no recording of the format {FORMAT}")
        parameters = tuple(
            Parameter(
                name=p["name"],
                values=tuple(p["values"]),
                default=p["default"],
                when=_condition(p["when"]),
                unless=_condition(p["unless"]),
                needs=(),
            )
            for p in data["space"]["parameters"]
        )
        return cls(
            **{name: data[name] for name in _PLAIN},
            environment=Environment(**data["environment"]),
            space=Space(
                name=data["space"]["name"],
                description="",
                parameters=parameters,
                left_out={},
                impossible=tuple(map(_condition, data["space"].get("impossible", ()))),
            ),
        )


def _condition(data: Mapping[str, Any]) -> Condition:
    return {name: tuple(values) for name, values in data.items()}


_PLAIN = ("model", "model_sha256", "workload", "recorded", "machine", "reference_ms", "max_error")


Luck = Mapping[str, float]
"""By name, the number of one measurement over the truth."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded table.

    Attributes:
        header: What was recorded, and where.
        measured: By configuration, each measurement of it.
        failed: By configuration, why it has none.
        duplicates: By configuration, another one that comes to the same and stands for it.
    """

    header: Header
    measured: Mapping[Configuration, Sequence[Numbers]]
    failed: Mapping[Configuration, Failure]
    duplicates: Mapping[Configuration, Configuration]

    @property
    def space(self) -> Space:
        """What was recorded, every configuration of it."""
        return self.header.space

    @cached_property
    def truth(self) -> Mapping[Configuration, Numbers]:
        """By configuration, the median of its measurements, and of its peaks the highest.

        That is how the final comparison reports them: with malloc's luck, a low peak is no promise.
        """
        return {configuration: _truth(rounds) for configuration, rounds in self.measured.items()}

    @cached_property
    def short_luck(self) -> Sequence[Luck]:
        """What the first, short measurements were, over the truth by the longer ones that followed.

        Of configurations that were measured more than once; all 1 where none was.
        """
        several = [rounds for rounds in self.measured.values() if len(rounds) > 1]
        return _luck([(rounds[0], rounds[1:]) for rounds in several])

    @cached_property
    def long_luck(self) -> Sequence[Luck]:
        """The longer measurements over the truth by the others of their configuration."""
        longer = [rounds[1:] for rounds in self.measured.values() if len(rounds) > 2]
        return _luck([(one, [*of[:i], *of[i + 1 :]]) for of in longer for i, one in enumerate(of)])

    @property
    def scatter(self) -> float:
        """The relative standard deviation of latency, by its median absolute deviation."""
        luck = [*self.short_luck, *self.long_luck]
        return 1.4826 * statistics.median(abs(math.log(of["latency_ms"])) for of in luck)

    def __len__(self) -> int:
        """The number of configurations."""
        return len(self.measured) + len(self.failed) + len(self.duplicates)


def _truth(rounds: Sequence[Numbers]) -> Numbers:
    names = asdict(rounds[0])
    medians = {name: statistics.median(getattr(n, name) for n in rounds) for name in names}
    return Numbers(**{**medians, "peak_memory_mib": max(n.peak_memory_mib for n in rounds)})


def _luck(pairs: Sequence[tuple[Numbers, Sequence[Numbers]]]) -> Sequence[Luck]:
    """Returns each measurement over the truth by others."""
    luck = [
        {name: _factor(one, truth, name) for name in _LUCKY}
        for one, truth in ((one, _truth(others)) for one, others in pairs)
    ]
    return luck or [dict.fromkeys(_LUCKY, 1.0)]


def _factor(numbers: Numbers, truth: Numbers, name: str) -> float:
    expected: float = getattr(truth, name)
    return getattr(numbers, name) / expected if expected > 0 else 1.0


def read(path: Path) -> Recording:
    """Returns the recording in a file, gzipped or still being written.

    Raises:
        ValueError: it is none, or its baseline was not measured.
    """
    lines = _lines(path)
    header = Header.from_json(next(lines, {}))
    measured: dict[Configuration, list[Numbers]] = {}
    failed: dict[Configuration, Failure] = {}
    duplicates: dict[Configuration, Configuration] = {}
    for line in lines:
        configuration = Configuration.of(line["configuration"])
        if "same_as" in line:
            duplicates[configuration] = Configuration.of(line["same_as"])
        elif "failure" in line:
            failed[configuration] = Failure(**line["failure"])
        else:
            measured.setdefault(configuration, []).append(Numbers(**line["numbers"]))
    # one that fails now and then cannot be relied on
    for configuration in failed.keys() & measured.keys():
        del measured[configuration]
    if BASELINE not in measured:
        raise ValueError(f"{path}: the baseline was not measured")
    return Recording(header=header, measured=measured, failed=failed, duplicates=duplicates)


def header_of(path: Path) -> Header:
    """Returns what a file says that it holds.

    Raises:
        ValueError: it is no recording.
    """
    return Header.from_json(next(_lines(path), {}))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                if line.endswith("\n"):
                    raise
                return  # the last line of one that was cut short
