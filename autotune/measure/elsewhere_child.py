"""Answers of a tuned config or a model, from a process that an emulator may run.

    python -m autotune.measure.elsewhere_child FILE REPORT SAMPLES OUTPUTS [SAMPLES OUTPUTS ...]

It opens a config as an application does and a model (``.onnx``) with default options, runs each
file of samples, and writes a report: why the config was refused, or the fault of each run. Needs
NumPy and onnxruntime, and nothing else of autotune's dependencies.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from autotune.deploy.loader import load
from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError
from autotune.measure.flatten import save_outputs


def main(file: str, report: str, *names: str) -> None:
    """Runs the samples; see the module."""
    refusal, faults = "", []
    try:
        session = _opened(file)
    except ConfigError as error:
        refusal = str(error)
    else:
        for samples, outputs in zip(names[::2], names[1::2], strict=True):
            try:
                save_outputs(session, Path(samples), Path(outputs))
                faults.append("")
            except Exception as error:  # noqa: BLE001  # ONNX Runtime's have no common class
                faults.append(str(error) or type(error).__name__)
    Path(report).write_text(json.dumps({"refusal": refusal, "faults": faults}), encoding="utf-8")


def _opened(file: str) -> Any:
    if file.endswith(".onnx"):
        return open_session(Path(file), SessionConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another machine is what this is for
        return load(file, threads=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
