"""On which kinds of processors the answers of a tuned config were compared.

Standard library only, because the loader reads configs.
"""

from dataclasses import dataclass
from typing import Annotated

from autotune.deploy.records import Amount, PositiveWhole, Text, Whole, one_of

PROCESSORS = ("avx2", "avx512", "vnni", "arm64")
"""Kinds of processors: x86 with AVX2 alone, with AVX-512, with VNNI, and ARM of 64 bits."""

COMPARED, REFUSED, FAILED, NOT_COMPARED = "compared", "refused", "failed", "not compared"
"""What came of a comparison; a config is refused where the loader does not open it."""

OUTCOMES = (COMPARED, REFUSED, FAILED, NOT_COMPARED)
"""All of them."""


Processor = Annotated[str, one_of(PROCESSORS)]
"""One of :data:`PROCESSORS`."""

CertificateOutcome = Annotated[str, one_of(OUTCOMES)]
"""One of :data:`OUTCOMES`."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The answers of a config on one kind of processor, called in one way.

    Attributes:
        outcome: Whether they were compared.
        how: On which processor, or why not, in words.
        batch: Samples of a run: 1, or a sample with others.
        padding: Positions that were added behind each sample, with the attention mask at 0.
        error: Largest relative L2 error of an output against the unoptimised model, which was
            called in the same way on the processor that compared; None where nothing was compared.
    """

    processor: Processor
    outcome: CertificateOutcome
    how: Text
    samples: Whole
    batch: PositiveWhole
    padding: Whole
    error: Amount | None
