"""Options that several commands take, and the panels that group options in the help."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing

INPUTS = "Inputs"
LIMITS = "Limits and objectives"
SEARCH = "Search"
DECODERS = "Decoders"
STORAGE = "Storage"

# an option of a panel
of_inputs = partial(typer.Option, rich_help_panel=INPUTS)
of_limits = partial(typer.Option, rich_help_panel=LIMITS)
of_search = partial(typer.Option, rich_help_panel=SEARCH)
of_decoders = partial(typer.Option, rich_help_panel=DECODERS)
of_storage = partial(typer.Option, rich_help_panel=STORAGE)

PROMPT_TOKENS = of_decoders(
    "--prompt-tokens",
    metavar="64,512",
    parser=parsing.token_counts,
    help="Lengths of a decoder's generated prompts (64).",
)
MAX_ERROR = of_limits(
    "--max-error",
    metavar="0.05",
    parser=parsing.error,
    help="Largest error (0.05), or rise of a decoder's perplexity (2%).",
)
OWN_MAX_ERROR = of_limits(
    "--max-error",
    metavar="0.05",
    parser=parsing.error,
    help="Largest error of an output, or rise of a decoder's perplexity (what the config was "
    "tuned for; of a model 0.05, of a decoder 2%).",
)
MAX_MEMORY = of_limits(
    "--max-memory",
    metavar="300MiB",
    parser=parsing.memory_mib,
    help="Largest peak memory that a session may add.",
)
_HELD_MEMORY = partial(
    of_limits,
    "--max-held-memory",
    metavar="200MiB",
    parser=parsing.memory_mib,
    help="Most memory that a process may hold after all runs.",
)
MAX_HELD_MEMORY = _HELD_MEMORY()
HIDDEN_MAX_HELD_MEMORY = _HELD_MEMORY(hidden=True)
MAX_LATENCY = of_limits(
    "--max-latency",
    metavar="10ms",
    parser=parsing.latency_ms,
    help="Longest run; with --clients, longest 99th percentile.",
)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
DataOption = Annotated[
    Path | None,
    of_inputs(
        "--data", metavar="NPZ|DIR", help="Samples, named after the model's inputs (generated)."
    ),
]
ShapeOption = Annotated[
    list[parsing.NamedShape] | None,
    of_inputs(
        "--shape",
        metavar="NAME=1,3,224,224",
        parser=parsing.named_shape,
        help="Shape of a generated input. Repeatable.",
    ),
]
ValueOption = Annotated[
    list[parsing.KeyValue] | None,
    of_inputs(
        "--value",
        metavar="NAME=16000",
        parser=parsing.named_value,
        help="Number that fills a generated input. Repeatable.",
    ),
]
GenerateOption = Annotated[
    Path | None,
    of_decoders(
        "--generate", metavar="JSONL", help="Prompts of a decoder, text or token ids (generated)."
    ),
]
PromptTokensOption = Annotated[list[tuple] | None, PROMPT_TOKENS]  # type: ignore[type-arg]
NewTokensOption = Annotated[
    int | None,
    of_decoders(
        "--new-tokens",
        metavar="N",
        parser=parsing.whole,
        help="How many tokens a decoder adds to each prompt (64).",
    ),
]
PairOption = Annotated[
    list[parsing.KeyValue] | None,
    of_decoders(
        "--pair",
        metavar="PAST=PRESENT",
        parser=parsing.fed_back,
        help="A decoder's input and the output fed to it. Repeatable.",
    ),
]
ModelOption = Annotated[
    Path | None,
    of_inputs(
        "--model",
        metavar="FILE",
        help="The original model, where the study's folder does not know it.",
    ),
]
ClientsOption = Annotated[
    int | None,
    of_inputs(
        "--clients", metavar="N", parser=parsing.clients, help="How many clients call at once (1)."
    ),
]
StudyNameOption = Annotated[
    str | None, of_storage("--study-name", metavar="NAME", help="Name of the study in its storage.")
]
UrlOption = Annotated[
    str | None,
    of_storage(
        "--storage",
        metavar="URL",
        help="Database of the trials (AUTOTUNE_STORAGE, or a file in DIR).",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document instead of text.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print the result alone, as one line.")
]
