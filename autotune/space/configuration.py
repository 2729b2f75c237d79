"""One point of a search space."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.deploy.options import BATCH, OWN, RUNTIME, Value
from autotune.errors import FormatError, did_you_mean, shown
from autotune.graph.parameters import GRAPH_PARAMETERS, graph_words
from autotune.space.parameters import PARAMETERS
from autotune.space.session import session_words


@dataclass(frozen=True)
class Configuration:
    """A canonical point: active parameters that differ from their default, sorted by name.

    Two configurations are equal exactly when they open the same session on the same file. Make one
    with :meth:`of`, or from a space.
    """

    values: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> "Configuration":
        """Returns the configuration with these values; those equal to their default are dropped.

        Args:
            values: Values of parameters in :data:`autotune.space.parameters.PARAMETERS`, by name.
        """
        changed = ((n, v) for n, v in values.items() if v != PARAMETERS[n].default)
        return cls(tuple(sorted(changed)))

    @classmethod
    def from_json(cls, data: object) -> "Configuration":
        """Returns the configuration that an object of parameters and values describes.

        Raises:
            FormatError: it is not an object, or has an unknown parameter or a wrong value.
        """
        if not isinstance(data, dict):
            raise FormatError(f"it must be an object of parameters, not {shown(data)}")
        for name, value in data.items():
            if name not in PARAMETERS:
                near = did_you_mean(str(name), PARAMETERS)
                raise FormatError(f"there is no parameter {shown(name)}.{near}")
            if problem := PARAMETERS[name].problem(value):
                raise FormatError(f"{name} {problem}")
        return cls.of(data)

    def to_json(self) -> dict[str, Value]:
        """Returns the values by name."""
        return dict(self.values)

    @property
    def key(self) -> str:
        """16 hexadecimal digits that stand for this configuration."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:16]

    def batch(self, smallest: int) -> int:
        """Returns the samples of a run; the smallest batch if none is named."""
        return int(dict(self.values).get(BATCH, smallest))

    @property
    def runtime(self) -> str:
        """The ONNX Runtime that runs it, as ``NAME==VERSION``; ``own`` for the user's."""
        return str(dict(self.values).get(RUNTIME, OWN))

    @property
    def graph(self) -> "Configuration":
        """The half that changes the model's file."""
        return Configuration(tuple(pair for pair in self.values if pair[0] in GRAPH_PARAMETERS))

    @property
    def session(self) -> "Configuration":
        """The half that changes how the file is opened and run."""
        return Configuration(tuple(pair for pair in self.values if pair[0] not in GRAPH_PARAMETERS))

    def in_words(self) -> str:
        """Returns what differs from the default, for a person to read."""
        session = [session_words(name, value) for name, value in self.session.values]
        return ", ".join([*graph_words(self.to_json()), *session]) or "the default"


BASELINE = Configuration()
"""The untouched model under a fresh ``SessionOptions()``."""
