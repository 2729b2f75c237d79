"""The child that tries one execution provider on a model of one matrix product.

Libraries of providers come from strangers: loading one may crash or hang, so it is done here first.
"""

import os
import re
import stat
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.deploy.cuda import problem
from autotune.deploy.opening import open_session
from autotune.deploy.plugins import is_built_in, plugin_devices
from autotune.deploy.providers import CPU, PROVIDERS, Provider
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError
from autotune.facts.probe import Probe
from autotune.facts.runtime import without_places
from autotune.process.child_end import Message, serve

_SIZE = 8
_LONGEST_LOG_BYTES = 64 << 10
# A line of the log, without the colours of a terminal.
_LOGGED_ERROR = re.compile(r"\[E:onnxruntime:[^\]]*\] ([^\x1b\n]+)")


def probe(message: Message) -> Probe:
    """Returns the devices on which the provider opens and runs a small model."""
    provider = PROVIDERS[message["provider"]]
    names: list[str] = []
    try:
        if is_built_in(provider):
            if reason := problem(provider):
                return Probe(devices=(), problem=reason)
        else:
            names = [f"{d.device.vendor} {d.device.type.name}" for d in plugin_devices(provider)]
            if not names:
                return Probe(devices=(), problem="it finds no device that it can use")
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            model = Path(folder) / "probe.onnx"
            onnx.save(_model(), model)
            return _try_devices(provider, model, names)
    except ConfigError as error:
        return Probe(devices=(), problem=str(error))


def _try_devices(provider: Provider, model: Path, names: list[str]) -> Probe:
    """Returns the values of ``device_type`` with which it works, or `names` without that option."""
    option = provider.options.get("device_type")
    devices, reason = [], ""
    for name in map(str, option.choices) if option else [""]:
        chosen = {"device_type": name} if name else {}
        config = SessionConfig(providers=((provider.name, chosen), (CPU, {})))
        try:
            session = open_session(model, config)
            session.run(None, {"x": np.ones((1, _SIZE), np.float32)})
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's own classes have no common one
            logged = _last_error() if isinstance(error, ConfigError) else ""
            reason = reason or logged or str(error)
        else:
            devices.append(name)
    if not devices:
        return Probe(devices=(), problem=reason)
    return Probe(devices=tuple(filter(None, devices)) or tuple(names), problem="")


def _last_error() -> str:
    """Returns the last error that ONNX Runtime logged in this process, whose stderr is a file.

    Why a provider was dropped stands there alone.
    """
    if not stat.S_ISREG(os.fstat(2).st_mode):
        return ""
    text = os.pread(2, _LONGEST_LOG_BYTES, 0).decode(errors="replace")
    errors = _LOGGED_ERROR.findall(text)
    return without_places(errors[-1]) if errors else ""


def _model() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.eye(_SIZE, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _SIZE])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    serve({"probe": probe})
