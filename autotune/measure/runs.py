"""One run of a session: through NumPy arrays, or with inputs and outputs on the device."""

import time
from collections.abc import Sequence
from typing import Any

import onnxruntime

from autotune.deploy.opening import make_run_options
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed

# The numbers of the graphs that give answers begin so; those that are timed count from 1.
_ANSWERS = "9"


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
        captured: The config of a session that replays captured graphs; None for all others. Each
            sample has buffers of its own, and so a graph of its own.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        feeds: Sequence[Feed],
        device: str,
        device_id: int,
        captured: SessionConfig | None = None,
    ) -> None:
        self._session = session
        self._feeds = feeds
        self._device = device
        self._device_id = device_id
        self._bindings = [self._bind(feed) for feed in feeds]
        self._options = [
            None if captured is None else make_run_options(captured, graph=str(number))
            for number in range(1, len(feeds) + 1)
        ]

    def run(self, index: int) -> None:
        """Runs the sample of that number and waits for the device."""
        binding = self._bindings[index]
        self._session.run_with_iobinding(binding, self._options[index])
        binding.synchronize_outputs()

    def copy_ms(self) -> float | None:
        """Returns the time to copy the first sample to the device and its outputs back."""
        self.run(0)
        began = time.perf_counter_ns()
        self._bind(self._feeds[0]).synchronize_inputs()
        self._bindings[0].copy_outputs_to_cpu()
        return (time.perf_counter_ns() - began) / 1e6

    def _bind(self, feed: Feed) -> Any:
        return bind(self._session, feed, self._device, self._device_id)[0]


class CapturedAnswers:
    """The answers of a session that replays captured graphs, by buffers that are written anew.

    An application uses such a session like this: what it wrote into the buffers is what a replay
    reads. The first run with inputs of some shapes captures their graph.
    """

    def __init__(self, session: Any, config: SessionConfig, device: str, device_id: int) -> None:
        self._session = session
        self._config = config
        self._device = device, device_id
        self._bound: dict[tuple[tuple[int, ...], ...], tuple[Any, dict[str, Any], Any]] = {}

    def run(self, feed: Feed) -> Sequence[Any]:
        """Returns the outputs of a replay."""
        shapes = tuple(array.shape for array in feed.values())
        if shapes not in self._bound:
            binding, values = bind(self._session, feed, *self._device)
            options = make_run_options(self._config, graph=f"{_ANSWERS}{len(self._bound)}")
            self._session.run_with_iobinding(binding, options)
            self._bound[shapes] = binding, values, options
        binding, values, options = self._bound[shapes]
        for name, array in feed.items():
            values[name].update_inplace(array)
        self._session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()
        outputs: Sequence[Any] = binding.copy_outputs_to_cpu()
        return outputs


def bind(session: Any, feed: Feed, device: str, device_id: int) -> tuple[Any, dict[str, Any]]:
    """Returns a binding of a sample's inputs and of all outputs to a device, and the inputs."""
    binding = session.io_binding()
    values = {}
    for name, array in feed.items():
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, device_id)
        binding.bind_ortvalue_input(name, values[name])
    for output in session.get_outputs():
        on_device = output.type.startswith("tensor(") and output.type != "tensor(string)"
        if on_device:
            binding.bind_output(output.name, device, device_id)
        else:
            binding.bind_output(output.name, "cpu")
    return binding, values


def runs_of(
    session: onnxruntime.InferenceSession,
    feeds: Sequence[Feed],
    device: str,
    device_id: int = 0,
    captured: SessionConfig | None = None,
) -> ArrayRuns | BoundRuns:
    """Returns the runs of a session whose tensors lie on a device; ``cpu`` is main memory.

    ONNX Runtime's Python API cannot bind strings.
    """
    has_strings = any(array.dtype.kind in "OSU" for feed in feeds for array in feed.values())
    if device == "cpu" or has_strings:
        return ArrayRuns(session, feeds)
    return BoundRuns(session, feeds, device, device_id, captured)
