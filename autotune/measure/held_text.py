"""How right a decoder's answers are: the perplexity of held text beside the unoptimised model's.

The error is the rise of the perplexity, such as 0.02. Each token is rated by the text before it
(teacher-forced). Where the user brings no text, the unoptimised model writes it. The likeliest
tokens are compared as well, and tokens that are decoded one by one with those of the same text read
at once: a wrong cache shows there.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.config import Coverage
from autotune.errors import CannotMeasureError
from autotune.facts.feeds import load_samples, save_samples
from autotune.facts.model import Model
from autotune.facts.runtime import without_places
from autotune.facts.workload import Workload
from autotune.measure.answers import OutputMismatchError, Outputs
from autotune.measure.configuration_run import FIRST_LIMITS
from autotune.measure.outcome import Fidelity
from autotune.measure.replies import TOKENS, Done
from autotune.measure.requests import SampleFiles, request_outputs, request_session
from autotune.measure.sample_sets import UNOPTIMISED, SampleSet
from autotune.process.child import Child, ChildFailure

# A cache that is wrong changes each token by far more; other kernels for one row change it less.
_CACHE_NLL = 0.15
_LARGEST_EXPONENT = 50.0
# A part of the windows, spread over the text, shows a rise that is far beyond the limit; fewer
# windows than this show no scatter.
_PARTS = 4
_FEWEST_FIRST = 4
_SURELY = 2.0  # standard errors of the mean; what is timed is far above the limit already


class TextJudge:
    """Compares how likely held text is with the unoptimised model's judgement.

    Any part of the windows in their order is spread over the text.
    """

    is_costly = True
    only_unchanged = ""

    def __init__(self, references: Sequence[Outputs]) -> None:
        first = len(references) // _PARTS
        self.first_look = first if first >= _FEWEST_FIRST else 0
        self._references = references
        self._nll = _joined(references, "nll")

    def compare(self, outputs: Sequence[Outputs]) -> Fidelity:
        """Returns how far the answers are from the unoptimised model's.

        Raises:
            OutputMismatchError: logits are NaN or infinite, or the cache changes the tokens.
        """
        nll = _joined(outputs, "nll")
        if nll.shape != self._nll.shape:
            raise OutputMismatchError("it rates another number of tokens than there are")
        self._check(outputs)
        windows = [_rise(difference) for difference in self._differences(outputs)]
        chosen, right = _joined(outputs, "choice"), _joined(self._references, "choice")
        sizes = float(np.linalg.norm(nll)) * float(np.linalg.norm(self._nll))
        return Fidelity(
            error=max(0.0, _rise(float(nll.mean() - self._nll.mean()))),
            worst_error=max(0.0, *windows),
            cosine=float(nll @ self._nll) / sizes if sizes else 1.0,
            max_difference=float(np.abs(nll - self._nll).max()),
            agreement=float(np.mean(chosen == right)),
            perplexity=math.exp(min(_LARGEST_EXPONENT, float(nll.mean()))),
            coverage=Coverage(
                samples=len(windows), share=1.0, constant_outputs=(), repeat_error=0.0
            ),
        )

    def surely_above(self, outputs: Sequence[Outputs], max_error: float) -> float | None:
        """Returns the rise in the first windows if that of the text is surely above `max_error`.

        Raises:
            OutputMismatchError: logits are NaN or infinite, or the cache changes the tokens.
        """
        self._check(outputs)
        differences = np.array(self._differences(outputs))
        spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
        mean = float(differences.mean())
        return _rise(mean) if _rise(mean - _SURELY * spread) > max_error else None

    def _check(self, outputs: Sequence[Outputs]) -> None:
        """Refuses outputs that are no numbers, or whose cache changes the tokens."""
        if not np.isfinite(_joined(outputs, "nll")).all():
            raise OutputMismatchError("the logits are NaN or infinite")
        cached = cache_difference(outputs)
        if cached > _CACHE_NLL + 2 * cache_difference(self._references):
            raise OutputMismatchError(
                "tokens decoded one by one with the cache differ from the same text read at once "
                f"(by {cached:.2g} in the logarithm of their probability)"
            )

    def _differences(self, outputs: Sequence[Outputs]) -> list[float]:
        """Returns by how much the mean logarithm of each window is above the reference's."""
        pairs = zip(outputs, self._references, strict=False)
        return [
            float(_joined([own], "nll").mean() - _joined([reference], "nll").mean())
            for own, reference in pairs
        ]


def cache_difference(outputs: Sequence[Outputs]) -> float:
    """Returns by how much the cache changes the logarithm of a token's probability, in the mean."""
    first = outputs[0]
    with_cache = np.asarray(first["cached_nll"], np.float64)
    at_once = np.asarray(first["nll"], np.float64)[-len(with_cache) :]
    difference = float(np.abs(with_cache - at_once).mean())
    return difference if math.isfinite(difference) else math.inf


def text_set(child: Child, model: Model, workload: Workload, folder: Path) -> dict[int, SampleSet]:
    """Returns the prompts of a decoder, with the unoptimised model's judgement of held text.

    Args:
        folder: Where they are written.

    Raises:
        CannotMeasureError: the model does not generate, or its logits are no numbers, or its cache
            changes its answers.
    """
    assert workload.plan is not None
    files = replace(SampleFiles.write(workload, folder), plan=workload.plan)
    try:
        request_session(child, files, model.path.absolute(), UNOPTIMISED, FIRST_LIMITS.load_s)
        if not workload.held:
            request = {"do": "write_text", "to": str(files.validation)}
            child.request(request, FIRST_LIMITS.run_s, Done)
        else:
            spread = [ids for first in range(_PARTS) for ids in workload.held[first::_PARTS]]
            longest = max(map(len, spread))  # the cache is checked on the first window
            spread.sort(key=lambda ids: len(ids) < longest)
            save_samples([{TOKENS: ids} for ids in spread], files.validation)
        windows = load_samples(files.validation)
        references = request_outputs(child, files, FIRST_LIMITS.of_runs(len(windows)))
    except ChildFailure as failure:
        raise CannotMeasureError(
            f"{model.path.name} does not generate ({failure.kind}): "
            f"{without_places(failure.message).rstrip('.')}. `autotune inspect` shows what is fed "
            "back; --set pair=past=present sets it."
        ) from None
    if not references or not np.isfinite(_joined(references, "nll")).all():
        raise CannotMeasureError(
            f"the logits of {model.path.name} are NaN or infinite for this text, so its answers "
            "cannot be compared"
        )
    if sum(len(each["nll"]) for each in references) < sum(len(w[TOKENS]) - 1 for w in windows):
        raise CannotMeasureError(
            f"{model.path.name} does not give the logits of all tokens of a prompt, so text cannot "
            "be rated; export it with all of them (GenAI's builder without prune_lm_head), or "
            f"measure single steps with --shape {workload.plan.decoder.tokens}=1,1"
        )
    if (difference := cache_difference(references)) > _CACHE_NLL:
        raise CannotMeasureError(
            f"{model.path.name} gives other tokens with its cache than without (by "
            f"{difference:.2g} in the logarithm of their probability): what is fed back is wrong. "
            "`autotune inspect` shows the pairs, and --set pair=past=present sets them."
        )
    dimensions = workload.dimensions(model)
    judge = TextJudge(references)
    return {1: SampleSet(files=files, dimensions=dimensions, judge=judge)}


def _joined(outputs: Sequence[Outputs], name: str) -> NDArray[np.float64]:
    """Returns one array of all windows, in double precision."""
    try:
        return np.concatenate([np.asarray(window[name], np.float64) for window in outputs])
    except KeyError:
        raise OutputMismatchError(f"'{name}' is missing") from None


def _rise(difference: float) -> float:
    """Returns the rise of the perplexity by the difference of mean logarithms."""
    return math.expm1(min(_LARGEST_EXPONENT, difference))
