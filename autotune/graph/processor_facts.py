"""What the answers of a model's file depend on the processor for, and what its config requires.

A limited child reads the file that a config will name, whatever made it.
"""

from pathlib import Path

from autotune.deploy import cpu
from autotune.deploy.loaded import Requires
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.graph.graph_facts import ProcessorFacts
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.graph.prepare_child"
_TIME_LIMIT_S = 300.0


def processor_facts(path: Path) -> ProcessorFacts:
    """Returns the facts of the model in the file `path`.

    Raises:
        CannotMeasureError: the file cannot be read.
    """
    with Child(_CHILD, memory_limit()) as child:
        request = {"do": "processor_facts", "path": str(path.absolute())}
        try:
            return child.request(request, _TIME_LIMIT_S, ProcessorFacts)
        except ChildFailure as failure:
            raise CannotMeasureError(f"cannot read {path}: {failure.message}") from None


def requirements(session: SessionConfig, facts: ProcessorFacts) -> Requires:
    """Returns what a config requires of a processor, so that its answers hold there.

    A session that was measured where eight-bit products overflow stays as it was measured.
    """
    # None: nobody knows, so the answers may have been measured with VNNI
    measured_overflowing = cpu.is_x86() and cpu.has_vnni() is False
    to_secure = facts.overflows and not measured_overflowing
    return Requires(
        providers=tuple(name for name, _ in session.providers),
        vnni=to_secure and not facts.exactness_reaches,
        exact_products=to_secure and facts.exactness_reaches,
        float16_in_float32=facts.float16 and not session.accelerator and not cpu.computes_in_half(),
        weight_block=cpu.weight_block() if facts.has_blocks else None,
        runtime=None,
    )
