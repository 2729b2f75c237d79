"""The application of service.py: a service with two models in one process. It knows no autotune.

    python service_application.py FOLDER REQUESTS text,image

FOLDER holds ``text.onnx`` (``input_ids``, ``attention_mask``) and ``image.onnx`` (``image``). Four
clients in a process of their own send the requests, each its next one after an answer. The last
line is JSON: requests a second, times of a request by kind, the peak of this process, and answers.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

CLIENTS = 4
LONGEST, WORDS = 64, 1000


def serve(folder: Path) -> "tuple[object, int]":
    """Starts the service in a thread; returns the server and its port."""
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI, Request

    service = FastAPI()
    text = onnxruntime.InferenceSession(folder / "text.onnx", providers=["CPUExecutionProvider"])
    image = onnxruntime.InferenceSession(folder / "image.onnx", providers=["CPUExecutionProvider"])

    @service.post("/text")
    def embed(body: dict[str, list[int]]) -> list[float]:
        ids = np.array([body["ids"]], np.int64)
        mask = np.ones_like(ids)
        (embedding,) = text.run(None, {"input_ids": ids, "attention_mask": mask})
        return [float(value) for value in embedding[0]]

    @service.post("/image")
    async def classify(request: Request) -> list[float]:
        from starlette.concurrency import run_in_threadpool

        sent = await request.body()
        return await run_in_threadpool(_classified, image, sent)

    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, server.servers[0].sockets[0].getsockname()[1]


def _classified(session: object, sent: bytes) -> list[float]:
    """Returns the logits of an image, after the arithmetic that precedes every classifier."""
    pixels = np.frombuffer(sent, np.uint8).reshape(1, 96, 96, 3).transpose(0, 3, 1, 2)
    scaled = np.ascontiguousarray((pixels / np.float32(127.5)) - np.float32(1), np.float32)
    (logits,) = session.run(None, {"image": scaled})  # type: ignore[attr-defined]
    return [float(value) for value in logits[0]]


def clients(port: int, requests: int, kinds: list[str]) -> None:
    """Sends the requests from four threads; writes the times and the answers as JSON."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    answers: dict[int, list[float]] = {}

    def client(own: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(own, requests, CLIENTS):
            random = np.random.default_rng(number)
            kind = kinds[number // CLIENTS % len(kinds)]
            if kind == "text":
                ids = random.integers(0, WORDS, random.integers(4, LONGEST + 1)).tolist()
                body, header = json.dumps({"ids": ids}).encode(), "application/json"
            else:
                body = random.integers(0, 256, 96 * 96 * 3, np.uint8).tobytes()
                header = "application/octet-stream"
            began = time.perf_counter()
            connection.request("POST", f"/{kind}", body, {"Content-Type": header})
            answers[number] = json.loads(connection.getresponse().read())
            times[kind].append(1e3 * (time.perf_counter() - began))

    began = time.perf_counter()
    threads = [threading.Thread(target=client, args=(own,)) for own in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = {
        "requests_per_s": requests / (time.perf_counter() - began),
        "ms": {kind: sorted(own) for kind, own in times.items()},
        "answers": [answers[number] for number in sorted(answers)],
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
