"""Where a user wants the search to start: a config, or some parameters with their values."""

from pathlib import Path

from autotune.deploy.config import FORMATS, TunedConfig
from autotune.deploy.files import read_json
from autotune.errors import ConfigError, FormatError, RequestError
from autotune.space.candidate import Candidate

# As much as a tuned config may have.
_LARGEST_BYTES = 1 << 20


def read_candidate(path: Path) -> Candidate:
    """Returns the candidate that a tuned config, or a JSON object of parameters, describes.

    Raises:
        RequestError: there is no such file, or it holds neither; the message names the key.
    """
    try:
        data = read_json(path, _LARGEST_BYTES)
    except FormatError as error:
        raise RequestError(f"--try: cannot read {path}: {error}") from None
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
