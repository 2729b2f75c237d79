"""The workload that a request asks for: samples, or prompts where the model is a decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.facts.generated import check_given, generate
from autotune.facts.model import Model
from autotune.facts.prompts import workload_of_prompts
from autotune.facts.tokens import LONGEST
from autotune.facts.tried_inputs import first_that_runs
from autotune.facts.workload import Workload, read, read_constants


@dataclass(frozen=True, kw_only=True)
class Generate:
    """How a decoder generates in a measurement, as the user asks for it.

    Attributes:
        prompts: A file with a JSON object in each line; None generates prompts.
        prompt_tokens: Lengths of generated prompts; empty means the usual one.
        new_tokens: How many tokens follow each prompt; None means the usual number.
    """

    prompts: Path | None = None
    prompt_tokens: tuple[int, ...] = ()
    new_tokens: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the user asks for anything of it."""
        return self != Generate()

    def check(self) -> None:
        """Refuses what no generation can work with.

        Raises:
            RequestError: a number is out of range, or there are prompts beside lengths of others.
        """
        for name, value in [
            *(("--prompt-tokens", length) for length in self.prompt_tokens),
            ("new_tokens", self.new_tokens),
        ]:
            if value is not None and not 1 <= value <= LONGEST:
                raise RequestError(f"{name} must be at least 1 and at most {LONGEST}, not {value}")
        if self.prompts is not None and self.prompt_tokens:
            raise RequestError("--generate brings its own prompts; leave --prompt-tokens out")


_NOTHING = Generate()
_NO_VALUES: Mapping[str, float] = {}


def workload_for(
    model: Model,
    data: Path | None,
    shapes: Mapping[str, Sequence[int]],
    seed: int = 0,
    generation: Generate = _NOTHING,
    values: Mapping[str, float] = _NO_VALUES,
) -> Workload:
    """Returns the user's samples in `data`, or generated ones where it is None.

    Generated ones have sizes and values with which the model was seen to run.

    A decoder generates tokens, unless there are samples of single steps, or shapes of them, or its
    logits are those of a prompt's last token alone, so that text cannot be rated. Beside what says
    how it generates, `data` has the inputs that are the same in all its steps.

    Args:
        values: Values of generated inputs by name.

    Raises:
        DataError: `data` or the prompts cannot be read, or do not fit the model.
        RequestError: `shapes` names an unknown input or does not fit it, the model runs on no
            inputs that can be generated, or it is no decoder.
    """
    generation.check()
    decoder = model.decoder
    generates = (
        decoder is not None
        and decoder.generates
        and decoder.tokens not in shapes
        and decoder.rates_prompts
    )
    constants: Feed = {}
    if generation.is_asked and data is not None:
        if decoder is None or not decoder.others:
            raise RequestError(
                "--data runs single steps; leave it out, or --generate and its options"
            )
        constants = read_constants(model, decoder.others, data)
    if generation.is_asked or (data is None and generates):
        return workload_of_prompts(
            model,
            generation.prompts,
            generation.prompt_tokens,
            generation.new_tokens,
            shapes,
            seed,
            constants,
        )
    if data is not None:
        if values:
            raise RequestError("--data brings its own values; leave --value out")
        return read(model, data)
    check_given(model, shapes, values)
    choice = first_that_runs(model, shapes, values)
    return generate(model, shapes, seed, values=values, choice=choice)
