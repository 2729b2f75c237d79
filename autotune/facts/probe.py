"""What a probe of an execution provider found: the record that both ends of the channel import."""

from dataclasses import dataclass

from autotune.deploy.records import Text


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The reply to ``probe``.

    Attributes:
        devices: Names of the devices on which a small model ran; empty if there is none, or if the
            provider names none and `problem` is empty.
        problem: Why the provider cannot be used here; empty if it can.
    """

    devices: tuple[Text, ...]
    problem: Text
