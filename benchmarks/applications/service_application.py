"""The application of service.py: a service with two models in one process. It knows no autotune.

    python service_application.py FOLDER REQUESTS text,image

FOLDER holds ``text.onnx`` (``input_ids``, ``attention_mask``) and ``image.onnx`` (``image``). Four
clients in a process of their own send the requests, each its next one after an answer. The last
line is JSON: requests a second, times of a request by kind, the peak of this process, and answers
by kind.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CLIENTS = 4
LONGEST, WORDS = 64, 1000


def serve(folder: Path) -> tuple[object, int]:
    """Starts the service in a thread; returns the server and its port."""
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI, Request

    service = FastAPI()
    text = onnxruntime.InferenceSession(folder / "text.onnx", providers=["CPUExecutionProvider"])

    @service.post("/text")
    def embed(body: dict[str, list[int]]) -> list[float]:
        ids = np.array([body["ids"]], np.int64)
        mask = np.ones_like(ids)
        (embedding,) = text.run(None, {"input_ids": ids, "attention_mask": mask})
        return [float(value) for value in embedding[0]]

    classify = _classifier(folder / "image.onnx")

    @service.post("/image")
    async def look(request: Request) -> list[float]:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(classify, await request.body())

    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, server.servers[0].sockets[0].getsockname()[1]


def _classifier(model: Path) -> Callable[[bytes], list[float]]:
    """Returns what gives the logits of an image, after the arithmetic that precedes classifiers."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def classify(sent: bytes) -> list[float]:
        pixels = np.frombuffer(sent, np.uint8).reshape(1, 96, 96, 3).transpose(0, 3, 1, 2)
        scaled = np.ascontiguousarray((pixels / np.float32(127.5)) - np.float32(1), np.float32)
        (logits,) = session.run(None, {"image": scaled})
        return [float(value) for value in logits[0]]

    return classify


def _body(kind: str, random: np.random.Generator) -> tuple[bytes, str]:
    """Returns the body of a request, and its type."""
    if kind == "text":
        ids = random.integers(0, WORDS, random.integers(4, LONGEST + 1)).tolist()
        return json.dumps({"ids": ids}).encode(), "application/json"
    return random.integers(0, 256, 96 * 96 * 3, np.uint8).tobytes(), "application/octet-stream"


def clients(port: int, requests: int, kinds: list[str]) -> None:
    """Sends the requests from four threads; writes the times and the answers as JSON."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    answers: dict[int, list[object]] = {}

    def kind_of(number: int) -> str:
        return kinds[number // CLIENTS % len(kinds)]

    bodies = [_body(kind_of(number), np.random.default_rng(number)) for number in range(requests)]

    def client(own: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(own, requests, CLIENTS):
            body, header = bodies[number]
            began = time.perf_counter()
            connection.request("POST", f"/{kind_of(number)}", body, {"Content-Type": header})
            answers[number] = json.loads(connection.getresponse().read())
            times[kind_of(number)].append(1e3 * (time.perf_counter() - began))

    began = time.perf_counter()
    threads = [threading.Thread(target=client, args=(own,)) for own in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = {
        "requests_per_s": requests / (time.perf_counter() - began),
        "ms": {kind: sorted(own) for kind, own in times.items()},
        "answers": {
            kind: [own for number, own in sorted(answers.items()) if kind_of(number) == kind]
            for kind in kinds
        },
    }
    sys.stdout.write(json.dumps(said) + "\n")


def main() -> None:
    if sys.argv[1] == "--clients":
        clients(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
        return
    folder, requests, kinds = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    server, port = serve(folder)
    command = [sys.executable, __file__, "--clients", str(port), requests, kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    server.should_exit = True  # type: ignore[attr-defined]
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    said = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(json.dumps({**said, "peak_mib": peak_kib / 1024}) + "\n")


if __name__ == "__main__":
    main()
