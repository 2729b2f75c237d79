"""Where a user wants the search to start: a config, or some parameters with their values."""

import json
from pathlib import Path

from autotune.deploy.config import FORMATS, TunedConfig
from autotune.errors import ConfigError, FormatError, RequestError
from autotune.space.candidate import Candidate


def read_candidate(path: Path) -> Candidate:
    """Returns the candidate that a tuned config, or a JSON object of parameters, describes.

    Raises:
        RequestError: there is no such file, or it holds neither; the message names the key.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"--try: cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--try: {path} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(
            f"--try: {path} must hold a tuned config, or an object of parameters such as "
            '{"intra_op_num_threads": 2}'
        )
    try:
        if data.get("format") in FORMATS:
            data = dict(TunedConfig.from_json(data).candidate)
        return Candidate.from_json(data)
    except (ConfigError, FormatError) as error:
        raise RequestError(f"--try: {path}: {error}") from None
