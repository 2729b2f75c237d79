"""Which options the library of an ONNX Runtime has."""

import mmap
from collections.abc import Collection
from pathlib import Path

# The names lie together: so far before one the search for the next one begins, in bytes.
_NEAR = 1 << 21


def unknown_names(names: Collection[str], package: Path) -> tuple[str, ...]:
    """Returns the names that no library of a package ``onnxruntime`` holds.

    ONNX Runtime ignores an option that it does not know, without a word. Libraries of execution
    providers are not searched; where no other one holds any of the names, all count as known.
    """
    left = set(names)
    for path in sorted((package / "capi").iterdir()):
        is_library = ".so" in path.name or path.suffix in {".pyd", ".dll", ".dylib"}
        if not is_library or "_providers_" in path.name:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = 0
            for name in sorted(left):
                place = data.find(name.encode(), start)
                if place < 0:
                    place = data.find(name.encode())
                if place >= 0:
                    left.remove(name)
                    start = max(0, place - _NEAR)
    return tuple(sorted(left)) if len(left) < len(names) else ()
