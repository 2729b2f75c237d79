"""Where a user wants the search to start: a config, or some parameters with their values."""

from pathlib import Path

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import read_json
from autotune.deploy.loaded import FORMAT
from autotune.deploy.options import BATCH, OWN, RUNTIME, Value
from autotune.deploy.providers import PROVIDERS
from autotune.errors import ConfigError, FormatError, RequestError
from autotune.facts.batches import Batching
from autotune.space.configuration import Configuration
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space

# As much as a tuned config may have.
_LARGEST_BYTES = 1 << 20


def read_configuration(path: Path) -> Configuration:
    """Returns the configuration that a tuned config, or a JSON object of parameters, describes.

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
        if data.get("format") == FORMAT:
            config = TunedConfig.from_json(data)
            # the configuration of a config does not name the smallest size of its study
            batch = None if config.serving is None else config.serving.batch
            data = {**config.configuration, **({BATCH: batch} if batch else {})}
        return Configuration.from_json(data)
    except (ConfigError, FormatError) as error:
        raise RequestError(f"--try: {path}: {error}") from None


def alone(space: Space, name: str) -> list[Configuration]:
    """Returns the simplest configuration of a space with each other value of a parameter.

    All else is as the default has it, unless the user or the space fixes it.

    Args:
        name: The parameter; a space without it gives no configuration.
    """
    return [
        space.nearest({name: value})
        for parameter in space.parameters
        if parameter.name == name
        for value in parameter.values
        if value != parameter.default
    ]


def providers_alone(space: Space) -> list[Configuration]:
    """Returns each execution provider of each ONNX Runtime with default options, the CPU's apart.

    Of a provider that several runtimes have, each is one.
    """
    offered = {parameter.name: parameter.values for parameter in space.parameters}
    chosen = [
        space.nearest({RUNTIME: runtime, EXECUTION_PROVIDER: word})
        for runtime in offered.get(RUNTIME, (OWN,))
        for word in offered.get(EXECUTION_PROVIDER, ())
        if word != "cpu"
    ]
    return [c for c in dict.fromkeys(chosen) if EXECUTION_PROVIDER in c.to_json()]


def provider_forms(space: Space) -> list[Configuration]:
    """Returns each execution provider in each precision that it takes, the CPU's apart.

    What a provider brings depends on the precision: in fp32 alone it may look like no gain. The
    shapes are fixed where they can be, which the compilers of providers gain from. Where a space
    has captured graphs, each form has one with and one without: a device waits for the calls of
    small kernels longer than it computes.
    """
    forms: list[Configuration] = []
    for plain in providers_alone(space):
        values = plain.to_json()
        word = str(values[EXECUTION_PROVIDER])
        half = PROVIDERS[word].half_precision
        changes: list[dict[str, Value]] = [{f"{word}.{name}": half[name] for name in half}]
        for precision in PROVIDERS[word].precisions:
            changes.append({"precision": precision, "per_channel": True})
        changes = [{}, *changes]
        if graphs := PROVIDERS[word].graph_capture:
            changes += [{**change, f"{word}.{graphs}": "1"} for change in changes]
        values["fixed_dimensions"] = True
        # a precision that the space does not offer falls back to the provider's own
        nearest = [space.nearest({**values, **change}) for change in changes]
        forms += [form for form in nearest if form != plain]
    return list(dict.fromkeys(forms))


def in_batches(configuration: Configuration, batching: Batching | None) -> Configuration:
    """Returns a configuration of the user as one of a study, where the smallest batch goes unnamed.

    Raises:
        RequestError: the study does not have the batch size of the configuration.
    """
    size = configuration.to_json().get(BATCH)
    if size is None:
        return configuration
    if size not in (batching.sizes if batching else ()):
        raise RequestError(f"--try: a configuration has batches of {size}; add {size} to --batch")
    values = configuration.to_json()
    if batching is not None and size == batching.smallest:
        del values[BATCH]
    return Configuration.of(values)
