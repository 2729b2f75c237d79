"""An application that uses ONNX Runtime in every way; prints what it sees. Run as a script."""

# ruff: noqa: T201
import builtins
import multiprocessing
import os
import sys
import threading
import warnings

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession

CPU = ["CPUExecutionProvider"]
FEED = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)


class Subclass(InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """A subclass with a method of its own."""

    def twice(self) -> float:
        return float(self.run(None, {"x": FEED})[0].sum() * 2)


def has_site() -> bool:
    """Returns whether the user's own ``sitecustomize`` ran in this process."""
    return hasattr(builtins, "users_sitecustomize")


def other_process(path: str) -> tuple[bool, float]:
    return has_site(), float(InferenceSession(path).run(None, {"x": FEED})[0].sum())


def main() -> None:
    path = sys.argv[1]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 2
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    print(
        has_site(), type(session) is InferenceSession, session.get_modelmeta().custom_metadata_map
    )
    print(
        session.run(None, {"x": FEED})[0].sum(), session.run(["y"], input_feed={"x": FEED})[0][0, 0]
    )
    subclass = Subclass(path_or_bytes=path, sess_options=settings)
    print(isinstance(subclass, InferenceSession), subclass.twice())
    with open(path, "rb") as file:  # noqa: PTH123
        from_bytes = InferenceSession(file.read())
    binding = from_bytes.io_binding()
    binding.bind_cpu_input("x", FEED)
    binding.bind_output("y")
    from_bytes.run_with_iobinding(binding)
    print(binding.copy_outputs_to_cpu()[0].sum())
    done = threading.Event()

    def called(_: object, *others: object) -> None:
        print(others)
        done.set()

    session.run_async(None, {"x": FEED}, called, "me")
    done.wait()
    print(session.run(None, {"x": [[1.0] * 64, [-1.0] * 64]})[0].sum())
    value = onnxruntime.OrtValue.ortvalue_from_numpy(FEED)
    print(session.run_with_ort_values(None, {"x": value})[0].numpy().sum())
    for wrong in ({}, {"x": FEED.astype(np.float64)}, {"x": [1.0]}):
        try:
            session.run(None, wrong)
        except Exception as error:  # noqa: BLE001
            print(type(error).__name__, str(error).splitlines()[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        missing = InferenceSession(path, settings, ["CUDAExecutionProvider", *CPU])
    texts = [str(warning.message) for warning in caught]
    print(missing.get_providers(), [text for text in texts if "not in available" in text])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX Runtime tells of it on stdout as well
        print(InferenceSession(path, settings, CPU[0]).get_providers())
    for arguments, named in (((path, None, CPU, None, 1), {}), ((path,), {"path_or_bytes": path})):
        try:
            InferenceSession(*arguments, **named)
        except TypeError as error:
            print(error)
    try:
        InferenceSession(path + ".missing")
    except Exception as error:  # noqa: BLE001
        print(type(error).__name__)
    threads = [threading.Thread(target=session.run, args=(None, {"x": FEED})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    forked = os.fork()
    if forked == 0:
        from_bytes.run(None, {"x": FEED[:, :]})
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(other_process, [path]))


if __name__ == "__main__":
    main()
