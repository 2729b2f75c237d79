"""A web service that answers with a tuned config.

    pip install ".[cpu]" fastapi uvicorn
    AUTOTUNE_CONFIG=cnn.autotune/best.json uvicorn --app-dir docs/examples service:app

    curl localhost:8000/health
    curl localhost:8000/predict -H 'content-type: application/json' -d '{"inputs": {"x": [[1, 2]]}}'

One session serves all requests: FastAPI calls `predict` in a thread for each request, and a session
of ONNX Runtime may run in several threads at once. For many callers at a time, one thread for each
run gives more throughput than all cores for one run; AUTOTUNE_THREADS sets the number.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import autotune

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


class Request(BaseModel):
    """The inputs of one run, as nested lists by the names of the model's inputs."""

    inputs: dict[str, Any]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the config before the first request; a wrong config ends the service at once."""
    threads = os.environ.get("AUTOTUNE_THREADS")
    app.state.session = autotune.load(
        os.environ["AUTOTUNE_CONFIG"], threads=int(threads) if threads else None
    )
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
def health() -> dict[str, Any]:
    """Returns the inputs that the model takes and the execution providers that run it."""
    session = app.state.session
    inputs = {item.name: {"type": item.type, "shape": item.shape} for item in session.get_inputs()}
    return {"inputs": inputs, "providers": session.get_providers()}


@app.post("/predict")
def predict(request: Request) -> dict[str, Any]:
    """Returns the outputs of one run, as nested lists by name."""
    session = app.state.session
    feed: dict[str, Any] = {}
    for item in session.get_inputs():
        if item.name not in request.inputs:
            raise HTTPException(422, f"the input {item.name} is missing")
        try:
            feed[item.name] = np.asarray(request.inputs[item.name], _TYPES[item.type])
        except (KeyError, ValueError, TypeError) as error:
            raise HTTPException(422, f"the input {item.name} is no {item.type}") from error
    try:
        outputs = session.run(None, feed)
    except Exception as error:  # ONNX Runtime's own classes have no common one
        raise HTTPException(422, f"the model does not take these inputs: {error}") from error
    names = [item.name for item in session.get_outputs()]
    return {"outputs": {name: output.tolist() for name, output in zip(names, outputs, strict=True)}}
