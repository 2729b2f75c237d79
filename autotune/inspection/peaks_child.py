"""The child that measures the machine's peaks."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.deploy.cpu import usable_cores
from autotune.deploy.runtime import onnxruntime
from autotune.inspection.headroom import Peaks
from autotune.process.child_end import Message, serve

# Rows, columns and length of the products; the best counts. Many cores need large ones, and a busy
# machine leaves hardly more than a millisecond undisturbed.
_SIZES = (512, 1024, 2048)
# Each core copies at least so much in one task: starting a thread takes some microseconds.
_TASK_BYTES = 32 << 20
_LEAST_COPIED_BYTES = 64 << 10
_SECONDS = 0.4
_FEWEST_RUNS = 3


def peaks(message: Message) -> Peaks:
    """Returns the best of many short runs of each kind; ``moved_bytes`` is the size of a copy."""
    moved_bytes: int = message["moved_bytes"]
    return Peaks(
        float_per_s=_operations_per_s("MatMul", np.float32, np.float32),
        int8_per_s=_operations_per_s("MatMulInteger", np.uint8, np.int8),
        bytes_per_s=_copied_per_s(moved_bytes),
        moved_bytes=2 * usable_cores() * _copied_bytes(moved_bytes),
    )


def _operations_per_s(operator: str, left: type, right: type) -> float:
    """Returns the operations a second of the product that is fastest."""
    return max(2 * size**3 / _best_s(_product(operator, left, right, size)) for size in _SIZES)


def _product(operator: str, left: type, right: type, size: int) -> Callable[[], object]:
    """Returns a function that multiplies two matrices through ONNX Runtime's default session."""
    random = np.random.default_rng(0)
    # small numbers: their sums fit in every type, and none is subnormal
    weight: NDArray[Any] = random.integers(1, 8, (size, size)).astype(right)
    factor: NDArray[Any] = random.integers(1, 8, (size, size)).astype(left)
    result = TensorProto.INT32 if left is np.uint8 else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, ["factor", "weight"], ["product"])],
        "peak",
        [_matrix("factor", helper.np_dtype_to_tensor_dtype(np.dtype(left)), size)],
        [_matrix("product", result, size)],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"], enable_fallback=0
    )
    return lambda: session.run(None, {"factor": factor})


def _matrix(name: str, element: int, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, [size, size])


def _copied_per_s(moved_bytes: int) -> float:
    """Returns the bytes that all usable cores together read and write in a second.

    Args:
        moved_bytes: Bytes that they read and write in one copy, each its part.
    """
    cores = usable_cores()
    size = _copied_bytes(moved_bytes)
    times = max(1, _TASK_BYTES // size)
    pairs = [(np.zeros(size, np.uint8), np.ones(size, np.uint8)) for _ in range(cores)]

    def copy(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
        for _ in range(times):
            np.copyto(*pair)

    with ThreadPoolExecutor(cores) as pool:
        seconds = _best_s(lambda: list(pool.map(copy, pairs)))
    return 2 * cores * size * times / seconds


def _copied_bytes(moved_bytes: int) -> int:
    """Returns how many bytes each core copies."""
    return max(_LEAST_COPIED_BYTES, moved_bytes // 2 // usable_cores())


def _best_s(work: Callable[[], object]) -> float:
    """Returns the shortest time of many runs: what slows a run down is not the machine's peak."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST_RUNS or time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    serve({"peaks": peaks})
