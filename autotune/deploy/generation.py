"""Generation with a decoder: caches are fed back as they lie in memory.

    generation = autotune.generation(autotune.load("best.json"))
    tokens = generation.generate([1, 15, 27], new_tokens=64)

It is small, for measuring and for trying; a server has more (batches, beams, many users). Where the
operator takes the same buffer for the past and the present, each cache is allocated once. Elsewhere
the output of a step is bound as the input of the next one. Neither copies a cache. They lie on the
device of the session's first execution provider, and the logits alone come back from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.deploy.decoder import (
    CACHE,
    CROSS,
    Decoder,
    HeadSizes,
    Pair,
    Port,
    decoder_of,
    pairs_by_name,
)
from autotune.deploy.providers import WORDS, provider_named
from autotune.errors import RequestError, did_you_mean

Array = NDArray[Any]

_FLOAT, _FLOAT16 = "tensor(float)", "tensor(float16)"
_TYPES = {
    _FLOAT: "float32",
    _FLOAT16: "float16",
    "tensor(double)": "float64",
    "tensor(bfloat16)": "bfloat16",
}
_QUIET = 4


@dataclass(frozen=True)
class Mark:
    """A point of a generation to which it can go back.

    Attributes:
        length: How many tokens the caches hold.
        token: The token that comes next.
        values: What lies at each past input.
    """

    length: int
    token: int
    values: Mapping[str, Any]


class Generation:
    """One sequence of tokens under way.

    Args:
        others: The inputs that are the same in all steps, by name.

    Attributes:
        length: How many tokens the caches hold.
        shares: Whether past and present are one buffer; None until the first tokens.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        decoder: Decoder,
        others: Mapping[str, Array] | None = None,
    ) -> None:
        self.length = 0
        self.shares: bool | None = None
        self._session = session
        self._decoder = decoder
        self._device, self._device_id = device_of(session)
        self._others = dict(others or {})
        if self._device != "cpu":  # what stays the same is copied once
            place = self._device, self._device_id
            self._others = {name: _copied(array, place) for name, array in self._others.items()}
        self._homes = homes_of(session)
        self._capacity = 0
        self._values: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._binding: Any = None  # that of shared buffers, which stays
        self._bound_tokens = 0
        self._kept: list[Array] = []
        self._token = 0
        self._ids = np.zeros((1, 1), decoder.token_dtype)
        self._types = {item.name: _dtype(item.type) for item in session.get_inputs()}
        self._ranks = {item.name: len(item.shape) for item in session.get_inputs()}

    def start(self, tokens: Sequence[int] | Array, capacity: int) -> Array:
        """Begins a sequence with a prompt; returns the logits of all its tokens.

        Args:
            tokens: The prompt, at least one token.
            capacity: The most tokens that the sequence will have.

        Raises:
            RequestError: the prompt is empty.
        """
        ids = np.asarray(tokens, self._decoder.token_dtype).reshape(1, -1)
        if not ids.size:
            raise RequestError("the prompt has no token; give at least one")
        self.prepare(max(capacity, ids.size))
        self.length = 0
        self._values = {
            pair.past: self._buffers.get(pair.past) or self._buffer(pair, 0)
            for pair in self._decoder.pairs
        }
        return self._run(ids)

    def prepare(self, capacity: int) -> None:
        """Makes what stays from sequence to sequence, so that no prompt's time has it in it.

        Args:
            capacity: The most tokens that a sequence will have.
        """
        if self.shares is None:
            self.shares = self._can_share()
        if self.shares and capacity > self._capacity:
            self._buffers = {p.past: self._buffer(p, capacity) for p in self._caches}
            self._capacity, self._binding = capacity, None

    def step(self, token: int | None = None) -> Array:
        """Adds a token; returns the logits of the next one.

        Args:
            token: The token; None means the likeliest one after the last step.
        """
        self._ids[0, 0] = self._token if token is None else token
        logits: Array = self._run(self._ids)[-1]
        return logits

    def mark(self) -> Mark:
        """Returns the point where the sequence is now."""
        return Mark(self.length, self._token, dict(self._values))

    def rewind(self, mark: Mark) -> None:
        """Goes back to an earlier point of the same sequence."""
        self.length, self._token = mark.length, mark.token
        self._values = dict(mark.values)

    def generate(self, tokens: Sequence[int], new_tokens: int) -> list[int]:
        """Returns the likeliest tokens (greedy) that follow a prompt.

        Args:
            tokens: The prompt.
            new_tokens: How many tokens.

        Raises:
            RequestError: the prompt is empty, or a logit is NaN or infinite.
        """
        logits = self.start(tokens, len(tokens) + new_tokens)[-1]
        made: list[int] = []
        while len(made) < new_tokens:
            if not np.isfinite(logits.max()):  # minus infinity rules a token out
                raise RequestError(f"after {self.length} tokens logits are NaN or infinite")
            made.append(int(logits.argmax()))
            if len(made) < new_tokens:
                logits = self.step(made[-1])
        return made

    def addresses(self) -> dict[str, int]:
        """Returns where each past value lies in memory, by the input's name."""
        return {name: value.data_ptr() for name, value in self._values.items()}

    @property
    def _caches(self) -> list[Pair]:
        return [pair for pair in self._decoder.pairs if pair.kind == CACHE]

    def _run(self, ids: Array) -> Array:
        """Runs the model on new tokens; returns their logits, [tokens, vocabulary].

        They are valid until the next run.
        """
        outputs = self._run_shared(ids) if self.shares else self._run_appending(ids)
        self.length += ids.shape[1]
        logits = np.asarray(outputs[0].numpy())
        logits = logits.reshape(-1, logits.shape[-1])
        self._token = int(logits[-1].argmax())
        return logits

    def _run_shared(self, ids: Array) -> Any:
        """Runs on buffers that hold past and present; they are bound once."""
        if self._binding is None:
            self._binding, self._bound_tokens = self._session.io_binding(), 0
            self._binding.bind_output(self._decoder.logits, "cpu")
            for pair in self._decoder.pairs:
                self._binding.bind_ortvalue_input(pair.past, self._values[pair.past])
                self._binding.bind_ortvalue_output(pair.present, self._values[pair.past])
        if ids.shape[1] != self._bound_tokens:  # logits of another size need another buffer
            self._binding.bind_output(self._decoder.logits, "cpu")
            self._bound_tokens = ids.shape[1]
        self._bind_tokens(self._binding, ids)
        self._run_bound(self._binding)
        return self._binding.get_outputs_as_ortvaluevector()

    def _run_appending(self, ids: Array) -> Any:
        """Runs with the last step's outputs as inputs; each new one has a buffer of its own."""
        is_first = self.length == 0
        binding = self._session.io_binding()
        self._bind_tokens(binding, ids)
        binding.bind_output(self._decoder.logits, "cpu")
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        # a cross-attention cache stays what the first step made it
        returned = [p for p in self._decoder.pairs if is_first or p.kind != CROSS]
        for pair in returned:
            binding.bind_output(pair.present, *self._homes[pair.present])
        self._run_bound(binding)
        outputs = binding.get_outputs()
        for pair, value in zip(returned, outputs[1:], strict=True):
            self._values[pair.past] = value
        return outputs

    def _run_bound(self, binding: Any) -> None:
        """Runs the model and waits for the device; the logits alone come back from it."""
        self._session.run_with_iobinding(binding)
        if self._device != "cpu":
            binding.synchronize_outputs()

    def _bind_tokens(self, binding: Any, ids: Array) -> None:
        """Binds everything but what is fed back."""
        decoder = self._decoder
        total = self.length + ids.shape[1]
        # a binding reads them where they lie, so they live until the next step
        self._kept = []
        feed: dict[str, Any] = {str(decoder.tokens): ids, **self._others}
        if decoder.mask:
            feed[decoder.mask] = np.ones((1, total), self._types[decoder.mask])
        if decoder.positions:
            positions = np.arange(self.length, total, dtype=self._types[decoder.positions])
            rank = self._ranks[decoder.positions]
            feed[decoder.positions] = positions if rank == 1 else positions.reshape(1, -1)
        if decoder.branch:
            feed[decoder.branch] = np.array([self.length > 0])
        for name, array in feed.items():
            if isinstance(array, onnxruntime.OrtValue):
                binding.bind_ortvalue_input(name, array)
                continue
            self._kept.append(np.asarray(array, order="C"))
            binding.bind_cpu_input(name, self._kept[-1])

    def _buffer(self, pair: Pair, length: int) -> Any:
        """Returns zeros for a past input, with room for `length` tokens where it grows.

        Their type is that of the session: a tuned model may have caches of fewer bits.
        """
        shape = [size or 0 for size in pair.shape]
        if pair.axis is not None:
            shape[pair.axis] = length
        return _copied(np.zeros(shape, self._types[pair.past]), self._homes[pair.present])

    def _can_share(self) -> bool:
        """Returns whether past and present can be one buffer, which the model itself shows.

        An operator that appends would need an output of another size than its input, and refuses.
        """
        caches = self._caches
        if not caches or self._decoder.branch or len(caches) < len(self._decoder.pairs):
            return False
        trial = Generation(self._session, self._decoder, self._others)
        trial.shares = True
        trial._values = {pair.past: self._buffer(pair, _PROBE) for pair in caches}
        before = trial.addresses()
        options = onnxruntime.RunOptions()
        options.log_severity_level = _QUIET
        try:
            trial._run(np.zeros((1, 1), self._decoder.token_dtype))
        except Exception:  # noqa: BLE001  # ONNX Runtime's own classes have no common one
            return False
        return trial.addresses() == before


_PROBE = 8


def generation(
    session: onnxruntime.InferenceSession,
    *,
    pairs: Mapping[str, str] | None = None,
    tokens: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    others: Mapping[str, Array] | None = None,
) -> Generation:
    """Returns what generates with a decoder's session, for measuring and trying.

    Args:
        session: The session, as :func:`autotune.load` returns it.
        pairs: Names of the outputs that are fed back, by those of the inputs; None finds them by
            their names.
        tokens: Name of the input of token ids; None finds it by its name.
        shapes: Shapes of past inputs whose sizes the model leaves open, for one sequence; one holds
            for all of its form.
        others: Inputs that are the same in all steps, such as an encoder's output.

    Raises:
        RequestError: the model is no decoder, or a name or a size is missing.
    """
    inputs = [_port(item) for item in session.get_inputs()]
    outputs = [_port(item) for item in session.get_outputs()]
    named = [("pairs", name, inputs) for name in pairs or {}]
    named += [("pairs", name, outputs) for name in (pairs or {}).values()]
    named += [("tokens", name, inputs) for name in filter(None, [tokens])]
    for option, name, ports in named:
        names = [port.name for port in ports]
        if name not in names:
            near = did_you_mean(name, names)
            raise RequestError(f"{option}: the model has no input or output '{name}'.{near}")
    known = pairs or pairs_by_name(inputs, outputs)
    decoder = decoder_of(inputs, outputs, known, tokens_name=tokens)
    if decoder is None or not decoder.generates:
        raise RequestError(
            "the session's model is no decoder that autotune knows: it needs token ids, logits, "
            "and outputs that are fed back; name them with pairs={past: present} and tokens="
        )
    complete = decoder.completed(HeadSizes(), shapes or {})
    missing = [name for name in complete.others if name not in (others or {})]
    if missing:
        raise RequestError(
            f"nothing feeds the inputs {', '.join(missing)}: give others= if they are the same in "
            "all steps"
        )
    if pair := complete.open_shape:
        raise RequestError(
            f"the size of '{pair.past}' is open; give it with "
            f"shapes={{'{pair.past}': (1, 3, 0, 64)}}"
        )
    return Generation(session, complete, others)


def device_of(session: Any) -> tuple[str, int]:
    """Returns where the tensors of a session lie best: a device by ONNX Runtime's name, its number.

    That is the device of its first execution provider, or main memory.
    """
    name = session.get_providers()[0]
    device = provider_named(name).device if name in WORDS else "cpu"
    if device == "cpu":
        return device, 0
    return device, int(session.get_provider_options().get(name, {}).get("device_id", 0))


def homes_of(session: Any) -> dict[str, tuple[str, int]]:
    """Returns where a session makes each of its outputs: the device or main memory.

    A node that the device's provider does not take writes into main memory. An operator that
    appends to the buffer that it is given would then write into a copy of it.
    """
    place = device_of(session)
    names = [output.name for output in session.get_outputs()]
    infos = session.get_output_memory_infos()
    pairs = zip(names, infos, strict=True)
    return {name: ("cpu", 0) if info.name == "Cpu" else place for name, info in pairs}


def _copied(array: Array, place: tuple[str, int]) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, *place)


def _port(item: Any) -> Port:
    return Port(name=item.name, dtype=_dtype(item.type), shape=tuple(s or None for s in item.shape))


def _dtype(kind: str) -> str:
    return _TYPES.get(kind, kind.removeprefix("tensor(").removesuffix(")"))
