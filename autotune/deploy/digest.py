"""The digest that says whether files are the same ones. Standard library only."""

from collections.abc import Iterable
from pathlib import Path


def digest_files(paths: Iterable[Path]) -> str:
    """Returns the SHA-256 of the files' bytes, one after the other, as hexadecimal digits."""
    # the library behind it takes more memory than all of the loader, which seldom needs a digest
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
