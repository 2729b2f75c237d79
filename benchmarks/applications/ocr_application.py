"""The application of ocr.py: RapidOCR over generated pages. It knows nothing of autotune."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

WORDS = (
    "tune model graph page of the time memory session thread batch report line runtime quick "
    "brown fox invoice total amount 2024 street number customer 19.99 payment order delivery"
).split()
LINES = 8


def page(random: np.random.Generator) -> np.ndarray:
    """Returns a page of 960 x 720 with lines of varying length."""
    image = Image.new("RGB", (960, 720), "white")
    draw = ImageDraw.Draw(image)
    for line in range(LINES):
        text = " ".join(random.choice(WORDS, random.integers(2, 9)))
        size = int(random.integers(22, 32))
        draw.text((40, 30 + 80 * line), text, fill="black", font=ImageFont.load_default(size=size))
    return np.asarray(image)


def main() -> None:
    random = np.random.default_rng(0)
    pages = [page(random) for _ in range(int(sys.argv[1]))]
    engine = RapidOCR()
    times, lines = [], []
    for image in pages:
        began = time.perf_counter()
        found, _ = engine(image)
        times.append(1e3 * (time.perf_counter() - began))
        lines += [text for _, text, _ in found or ()]
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    said = {"page_ms": times, "peak_mib": peak_kib / 1024, "lines": lines}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
