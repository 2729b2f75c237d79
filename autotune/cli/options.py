"""Options that several commands take, and the panels that group options in the help."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing

INPUTS = "Inputs"
LIMITS = "Limits and objectives"
SEARCH = "Search"
STORAGE = "Storage"
ADVANCED = "Advanced"


DATA = typer.Option(
    "--data",
    metavar="NPZ|DIR",
    help="Samples, named after the model's inputs (generated).",
    rich_help_panel=INPUTS,
)
SHAPE = typer.Option(
    "--shape",
    metavar="NAME=1,3,224,224",
    parser=parsing.named_shape,
    help="Shape of a generated input. Repeatable.",
    rich_help_panel=INPUTS,
)
GENERATE = typer.Option(
    "--generate",
    metavar="JSONL",
    help="Prompts of a decoder, text or token ids (generated).",
    rich_help_panel=INPUTS,
)
PROMPT_TOKENS = typer.Option(
    "--prompt-tokens",
    metavar="64,512",
    parser=parsing.token_counts,
    help="Lengths of a decoder's generated prompts (64).",
    rich_help_panel=INPUTS,
)
NEW_TOKENS = typer.Option(
    "--new-tokens",
    metavar="N",
    help="How many tokens a decoder adds to each prompt (64).",
    rich_help_panel=INPUTS,
)
PAIR = typer.Option(
    "--pair",
    metavar="PAST=PRESENT",
    parser=parsing.fed_back,
    help="A decoder's input and the output fed to it. Repeatable.",
    rich_help_panel=INPUTS,
)
MODEL = typer.Option(
    "--model",
    metavar="FILE",
    help="The original model, where the study's folder does not know it.",
    rich_help_panel=INPUTS,
)
CLIENTS = typer.Option(
    "--clients",
    metavar="N",
    parser=parsing.clients,
    help="How many clients call at once (1).",
    rich_help_panel=INPUTS,
)
MAX_ERROR = typer.Option(
    "--max-error",
    metavar="0.05",
    parser=parsing.error,
    help="Largest relative L2 error of an output (0.05).",
    rich_help_panel=LIMITS,
)
MAX_PERPLEXITY_RISE = typer.Option(
    "--max-perplexity-rise",
    metavar="2%",
    parser=parsing.share,
    help="How far a decoder's perplexity may rise (2%).",
    rich_help_panel=LIMITS,
)
MAX_MEMORY = typer.Option(
    "--max-memory",
    metavar="300MiB",
    parser=parsing.memory_mib,
    help="Largest peak memory that a session may add.",
    rich_help_panel=LIMITS,
)
MAX_LATENCY = typer.Option(
    "--max-latency",
    metavar="10ms",
    parser=parsing.latency_ms,
    help="Longest run; with --clients, longest 99th percentile.",
    rich_help_panel=LIMITS,
)
STUDY_NAME = typer.Option(
    "--study-name",
    metavar="NAME",
    help="Name of the study in its storage.",
    rich_help_panel=STORAGE,
)
URL = typer.Option(
    "--storage",
    metavar="URL",
    help="Database of the trials (AUTOTUNE_STORAGE, or a file in DIR).",
    rich_help_panel=STORAGE,
)
JSON = typer.Option("--json", metavar="", help="Print one JSON document instead of text.")
QUIET = typer.Option("--quiet", "-q", metavar="", help="Show no progress and no notes.")

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
DataOption = Annotated[Path | None, DATA]
ShapeOption = Annotated[list[parsing.NamedShape] | None, SHAPE]
GenerateOption = Annotated[Path | None, GENERATE]
PromptTokensOption = Annotated[list[tuple] | None, PROMPT_TOKENS]  # type: ignore[type-arg]
NewTokensOption = Annotated[int | None, NEW_TOKENS]
PairOption = Annotated[list[parsing.Pair] | None, PAIR]
ModelOption = Annotated[Path | None, MODEL]
ClientsOption = Annotated[int | None, CLIENTS]
StudyNameOption = Annotated[str | None, STUDY_NAME]
UrlOption = Annotated[str | None, URL]
JsonOption = Annotated[bool, JSON]
QuietOption = Annotated[bool, QUIET]
