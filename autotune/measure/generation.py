"""Generations in the measuring process: prompts and steps that are timed, text that is rated."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.deploy.config import LengthTimes
from autotune.deploy.decoder import Plan
from autotune.deploy.generation import Generation, Mark
from autotune.errors import RequestError
from autotune.facts.feeds import Feed, save_samples
from autotune.measure.replies import PROMPTS, STEPS, TOKENS
from autotune.measure.runs import Runs

# Text that a model writes itself: enough windows, as long as the time lasts.
_WINDOWS, _WINDOW_TOKENS = 8, 64
_FEWEST_WINDOWS = 2
_WRITING_S = 10.0
_SEED = 0
# Rows of logits whose logarithms are computed at once.
_ROWS = 64
# The fastest of so many steps shows that a configuration is far too slow, on a noisy machine too.
_FIRST_STEPS = 4
# Tokens that are decoded one by one to see whether the cache changes them.
_CACHED_TOKENS = 16


class GenerationRuns(Runs):
    """Runs of a decoder: each is a step, or a prompt, of a generation that never ends.

    Steps begin in the middle of the new tokens in every time slice, so that both sides of a duet
    have the same context.

    Args:
        session: The session.
        plan: What is generated.
        feeds: The first steps.

    Attributes:
        part: Which part :meth:`run` runs.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, plan: Plan, feeds: Sequence[Feed]
    ) -> None:
        self.part = STEPS
        self._session = session
        self._plan = plan
        self._feeds = feeds
        self._generations = [self._new(feed) for feed in feeds]
        self._marks: list[Mark] = []

    def run(self, index: int) -> None:
        """Runs the prompt of that number, or a step after it."""
        generation = self._generations[index]
        if self.part == PROMPTS:
            self._start(generation, index)
            return
        if generation.length >= self._capacity(index):
            generation.rewind(self._marks[index])
        generation.step()

    def begin(self) -> None:
        """Goes back to where a time slice begins."""
        if self.part == PROMPTS:
            return
        if not self._marks:
            for index, generation in enumerate(self._generations):
                _, middle = self._times(generation, index, self._plan.new_tokens // 2)
                self._marks.append(middle)
        for generation, mark in zip(self._generations, self._marks, strict=True):
            generation.rewind(mark)

    def switch(self, part: str) -> None:
        """Takes another part.

        Steps go on where they were: a prompt writes into the caches what is there already.
        """
        self.part = part

    def first(self, index: int) -> tuple[float, float]:
        """Returns the time of the first prompt, and that of the fastest of a few steps, in ms."""
        steps = max(1, min(_FIRST_STEPS, self._plan.new_tokens - 1))
        times, _ = self._times(self._new(self._feeds[index]), index, steps)
        return times[0], min(times[1:])

    def whole(self, index: int) -> LengthTimes:
        """Returns the times of a whole generation; where there are several, its caches go again."""
        is_only = len(self._feeds) == 1
        generation = self._generations[index] if is_only else self._new(self._feeds[index])
        times, middle = self._times(generation, index, max(1, self._plan.new_tokens - 1))
        if is_only:
            self._marks = [middle]
        prompt = self._prompt(index).size
        return LengthTimes(
            prompt_tokens=prompt,
            context=prompt + self._plan.new_tokens // 2,
            ttft_ms=times[0],
            step_ms=float(np.median(times[1:])),
        )

    def _times(self, generation: Generation, index: int, steps: int) -> tuple[list[float], Mark]:
        """Returns the times of a prompt and the steps after it in ms, and the middle of them."""
        generation.prepare(self._capacity(index))
        ends = [time.perf_counter_ns()]
        self._start(generation, index)
        ends.append(time.perf_counter_ns())
        middle = generation.mark()
        for number in range(1, steps + 1):
            generation.step()
            ends.append(time.perf_counter_ns())
            if number == self._plan.new_tokens // 2:
                middle = generation.mark()
        return [float(ms) for ms in np.diff(ends) / 1e6], middle

    def _new(self, feed: Feed) -> Generation:
        return new_generation(self._session, self._plan, feed)

    def _prompt(self, index: int) -> NDArray[Any]:
        return self._feeds[index][str(self._plan.decoder.tokens)]

    def _capacity(self, index: int) -> int:
        return int(self._prompt(index).size) + self._plan.new_tokens

    def _start(self, generation: Generation, index: int) -> None:
        generation.start(self._prompt(index), self._capacity(index))


def new_generation(session: onnxruntime.InferenceSession, plan: Plan, feed: Feed) -> Generation:
    """Returns a generation whose constant inputs are those of a first step."""
    return Generation(session, plan.decoder, {name: feed[name] for name in plan.decoder.others})


def save_rated_text(
    session: onnxruntime.InferenceSession,
    plan: Plan,
    feed: Feed,
    windows: Iterable[Feed],
    target: Path,
) -> None:
    """Writes how likely a session finds each token of held text, window by window.

    Of each window the file has ``nll``, the negative logarithm of the probability of each token
    after the first, and ``choice``, the likeliest token in its place; both are shorter where the
    model gives the logits of some tokens alone. Of the first window it also has ``cached_nll``, the
    same of the last tokens decoded one by one, with the cache.
    """
    generation = new_generation(session, plan, feed)
    rated = []
    for number, window in enumerate(windows):
        ids = np.asarray(window[TOKENS])
        logits = generation.start(ids, ids.size)[:-1]
        answers = {"nll": _nll(logits, ids[1 : len(logits) + 1]), "choice": logits.argmax(-1)}
        if number == 0:
            answers["cached_nll"] = _with_cache(generation, ids)
        rated.append(answers)
    save_samples(rated, target)


def _with_cache(generation: Generation, ids: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the same for the last tokens of a window, decoded one by one."""
    count = min(_CACHED_TOKENS, ids.size - 1)
    first = ids.size - count
    rows = [generation.start(ids[:first], ids.size)[-1].copy()]
    rows += [generation.step(int(token)).copy() for token in ids[first:-1]]
    return _nll(np.stack(rows), ids[first:])


def _nll(logits: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the negative logarithm of the probability of each token."""
    result = np.empty(len(tokens), np.float32)
    for start in range(0, len(tokens), _ROWS):
        some = logits[start : start + _ROWS].astype(np.float32)
        chosen = some[np.arange(len(some)), tokens[start : start + _ROWS]]
        largest = some.max(-1)
        some -= largest[:, None]
        np.exp(some, out=some)
        result[start : start + _ROWS] = np.log(some.sum(-1)) + largest - chosen
    return result


def write_text(session: onnxruntime.InferenceSession, plan: Plan, feed: Feed, target: Path) -> None:
    """Writes windows of text that the session's model makes up, drawn by its own probabilities.

    What a model finds likely in it is compared with what it wrote: the expected rise of the
    perplexity is never below 0, and 0 for the same probabilities alone.
    """
    generation = new_generation(session, plan, feed)
    prompt = np.asarray(feed[str(plan.decoder.tokens)]).ravel()
    size = min(_WINDOW_TOKENS, plan.decoder.context or _WINDOW_TOKENS)
    end = time.monotonic() + _WRITING_S
    windows: list[Feed] = []
    while len(windows) < _WINDOWS:
        if len(windows) >= _FEWEST_WINDOWS and time.monotonic() > end:
            break
        first = [int(prompt[len(windows) % prompt.size])]
        random = np.random.default_rng(_SEED + len(windows))
        logits = generation.start(first, size)[-1]
        text = first
        while len(text) < size:
            text.append(_drawn(logits, random))
            if len(text) < size:
                logits = generation.step(text[-1])
        windows.append({TOKENS: np.array(text, np.int64)})
    save_samples(windows, target)


def _drawn(logits: NDArray[Any], random: np.random.Generator) -> int:
    """Returns a token that is drawn by its probability.

    Raises:
        RequestError: a logit is NaN or infinite; minus infinity rules a token out.
    """
    if not np.isfinite(logits.max()):
        raise RequestError("logits are NaN or infinite")
    odds = np.exp(logits.astype(np.float64) - float(logits.max()))
    return int(random.choice(len(odds), p=odds / odds.sum()))
