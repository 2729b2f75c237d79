"""Where a user wants the search to start: a config, or some parameters with their values."""

from pathlib import Path

from autotune.deploy.config import FORMATS, TunedConfig
from autotune.deploy.files import read_json
from autotune.deploy.options import BATCH
from autotune.errors import ConfigError, FormatError, RequestError
from autotune.facts.batches import Batching
from autotune.space.candidate import Candidate
from autotune.space.space import Space

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
            config = TunedConfig.from_json(data)
            # the candidate of a config does not name the smallest size of its study
            batch = None if config.serving is None else config.serving.batch
            data = {**config.candidate, **({BATCH: batch} if batch else {})}
        return Candidate.from_json(data)
    except (ConfigError, FormatError) as error:
        raise RequestError(f"--try: {path}: {error}") from None


def alone(space: Space, name: str) -> list[Candidate]:
    """Returns the untouched model under default options, but for each other value of a parameter.

    Args:
        space: The search space.
        name: The parameter; a space without it gives no candidate.
    """
    return [
        Candidate.of({name: value})
        for parameter in space.parameters
        if parameter.name == name
        for value in parameter.values
        if value != parameter.default
    ]


def in_batches(candidate: Candidate, batching: Batching | None) -> Candidate:
    """Returns a candidate of the user as one of a study, where the smallest batch goes unnamed.

    Args:
        candidate: The candidate.
        batching: The batch sizes of the study; None where it has none.

    Raises:
        RequestError: the study does not have the batch size of the candidate.
    """
    size = candidate.to_json().get(BATCH)
    if size is None:
        return candidate
    if size not in (batching.sizes if batching else ()):
        raise RequestError(f"--try: a candidate has batches of {size}; add {size} to --batch")
    values = candidate.to_json()
    if batching is not None and size == batching.smallest:
        del values[BATCH]
    return Candidate.of(values)
