"""The times of generations, by the length of their prompts: records of both ends."""

from dataclasses import dataclass

from autotune.deploy.records import MeasuredPositive, PositiveWhole

STEPS, PROMPTS = "steps", "prompts"
"""The two parts of a generation that are timed, each in a duet of its own."""

TOKENS = "tokens"
"""Name of the array of a window of text."""


@dataclass(frozen=True, kw_only=True)
class LengthTimes:
    """The times of a generation after a prompt of one length, by the clock.

    Attributes:
        context: Tokens in the cache in the middle of the timed steps.
        ttft_ms: Time to the first token: the prompt.
        step_ms: Median time of a further token.
    """

    prompt_tokens: PositiveWhole
    context: PositiveWhole
    ttft_ms: MeasuredPositive
    step_ms: MeasuredPositive
