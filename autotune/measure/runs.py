"""One run of a session: through NumPy arrays, or with inputs and outputs on the device."""

import time
from collections.abc import Sequence
from typing import Any

import onnxruntime

from autotune.facts.feeds import Feed


class Runs:
    """The runs of one client: of samples, or of the steps of a decoder."""

    def run(self, index: int) -> None:
        """Runs the sample of that number."""
        raise NotImplementedError

    def begin(self) -> None:
        """Goes back to where a time slice begins."""

    def switch(self, part: str) -> None:
        """Takes another part of a decoder's generations."""

    def copy_ms(self) -> float | None:
        """Returns the time of the copies to a device and back; None where none are left out."""
        return None


class ArrayRuns(Runs):
    """Runs on arrays in main memory, as ``InferenceSession.run`` takes them."""

    def __init__(self, session: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> None:
        self._session = session
        self._feeds = feeds

    def run(self, index: int) -> None:
        """Runs the sample of that number."""
        self._session.run(None, self._feeds[index])


class BoundRuns(Runs):
    """Runs on values that lie on the device already (I/O binding), synchronised at the end.

    Without this, the copies over the bus would hide what the options of the provider change, and
    captured graphs would not work at all.

    Args:
        feeds: The samples; they hold no strings.
        device: The kind of device by ONNX Runtime's name, such as ``cuda``.
        device_id: The number of the device among those of its kind, as the provider has it.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        feeds: Sequence[Feed],
        device: str,
        device_id: int,
    ) -> None:
        self._session = session
        self._feeds = feeds
        self._device = device
        self._device_id = device_id
        self._bindings = [self._bind(feed) for feed in feeds]

    def run(self, index: int) -> None:
        """Runs the sample of that number and waits for the device."""
        binding = self._bindings[index]
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    def copy_ms(self) -> float | None:
        """Returns the time to copy the first sample to the device and its outputs back."""
        self.run(0)
        began = time.perf_counter_ns()
        self._bind(self._feeds[0]).synchronize_inputs()
        self._bindings[0].copy_outputs_to_cpu()
        return (time.perf_counter_ns() - began) / 1e6

    def _bind(self, feed: Feed) -> Any:
        binding = self._session.io_binding()
        for name, array in feed.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, self._device, self._device_id)
            binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            on_device = output.type.startswith("tensor(") and output.type != "tensor(string)"
            if on_device:
                binding.bind_output(output.name, self._device, self._device_id)
            else:
                binding.bind_output(output.name, "cpu")
        return binding


def runs_of(
    session: onnxruntime.InferenceSession, feeds: Sequence[Feed], device: str, device_id: int = 0
) -> ArrayRuns | BoundRuns:
    """Returns the runs of a session whose tensors lie on a device; ``cpu`` is main memory.

    ONNX Runtime's Python API cannot bind strings.
    """
    has_strings = any(array.dtype.kind in "OSU" for feed in feeds for array in feed.values())
    if device == "cpu" or has_strings:
        return ArrayRuns(session, feeds)
    return BoundRuns(session, feeds, device, device_id)
