"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing

DATA = typer.Option(
    "--data",
    metavar="INPUTS.npz|DIR",
    help="Your inputs: an .npz file whose arrays have the names of the model's inputs and hold "
    "the samples along their first axis, or a folder of .npz files with one sample each. If left "
    "out, inputs are generated.",
)
SHAPE = typer.Option(
    "--shape",
    metavar="NAME=1,3,224,224",
    parser=parsing.named_shape,
    help="Shape of a generated input. Repeatable.",
)
MAX_MEMORY = typer.Option(
    "--max-memory",
    metavar="300MiB",
    parser=parsing.memory_mib,
    help="Largest peak memory that a session may add (MiB, MB, GiB or GB).",
)
MAX_LATENCY = typer.Option(
    "--max-latency",
    metavar="10ms",
    parser=parsing.latency_ms,
    help="Largest latency of a run (ms, us or s). With the objective throughput_per_s it bounds "
    "the 99th percentile under load.",
)
WAIT = typer.Option(
    "--wait", help="Wait for another study on the same cores to end, instead of refusing."
)
JSON = typer.Option("--json", help="Print one JSON document instead of text.")

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
DataOption = Annotated[Path | None, DATA]
ShapeOption = Annotated[list[parsing.NamedShape], SHAPE]
JsonOption = Annotated[bool, JSON]
