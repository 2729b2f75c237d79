"""The child of :mod:`autotune.graph.optimizers`: writes the graph with each optimisation left out.

ONNX Runtime's log names the optimisations that changed something, which saves most of the attempts.
What one leaves undone, another one may do: so the written graphs decide.
"""

import os
import re
import tempfile
from pathlib import Path

import onnx

from autotune.facts.graphs import all_nodes, operator_of
from autotune.graph.algebra.model import simplify
from autotune.graph.graph_digest import SlimModels
from autotune.graph.graph_facts import Optimizers
from autotune.graph.model_file import NO_PREPACKING
from autotune.graph.optimizers import RULES, TRANSFORMERS
from autotune.process.child_end import Message, serve

_CHANGED = re.compile(r"GraphTransformer (\w+) modified: 1")


def firing(message: Message) -> Optimizers:
    """Returns the optimisations that change the model in the file ``path``, or its algebra."""
    model = onnx.load(message["path"])
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        models = SlimModels(Path(folder))
        changing = _firing(models, model, set())
        model = onnx.load(message["path"])
        if simplify(model):
            changing |= _firing(models, model, changing)
    return Optimizers(names=tuple(sorted(changing)))


def _firing(models: SlimModels, model: onnx.ModelProto, known: set[str]) -> set[str]:
    """Returns the optimisations that change a model, but for those that are known to change it."""
    path = models.write(model)
    operators = {operator_of(node) for node in all_nodes(model.graph)}
    whole = models.digest(path)
    if whole is None:
        return set()
    likely = TRANSFORMERS.intersection(_CHANGED.findall(_log(path)))
    likely |= {name for name, operator in RULES.items() if operator in operators}
    return {name for name in likely - known if models.digest(path, name) != whole}


def _log(path: Path) -> str:
    """Returns what ONNX Runtime logs while it opens a model: it writes to the standard error."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 1
    settings.add_session_config_entry(NO_PREPACKING, "1")
    with tempfile.TemporaryFile(dir=Path.cwd()) as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            onnxruntime.InferenceSession(
                path, settings, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")


if __name__ == "__main__":
    serve({"firing": firing})
