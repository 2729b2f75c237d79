"""ONNX Runtime's quantisation tools print and log; what they say is of no use to a user."""

import contextlib
import io
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def silent_tools() -> Iterator[None]:
    """Suppresses what the tools print and log."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
