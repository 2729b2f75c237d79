"""Removes what a study can make again: the transformed models in its cache."""

from pathlib import Path

from autotune.deploy.files import is_folder
from autotune.deploy.kinds import STUDY, is_folder_of, mistaken
from autotune.errors import StudyError
from autotune.process.scratch import carries_mark, remove_marked
from autotune.results.writing import CACHE
from autotune.storage.locks import exclusive_use

STUDIES = "studies"
"""Folder of the models' own studies, in that of a tuned application."""


def clean(folder: Path) -> int:
    """Removes the cache of the study in a folder; returns how many bytes that freed.

    Of a tuned application these are the caches of its models' own studies. Everything else stays:
    best.json and its model, the result, the trials.

    Raises:
        StudyError: the folder holds no study, or one that is at work now.
    """
    places = [folder, *sorted(folder.glob(f"{STUDIES}/*"))]
    caches = [place / CACHE for place in places if carries_mark(place / CACHE)]
    if not caches and (problem := _problem(folder)):
        raise StudyError(problem)
    freed_bytes = 0
    for cache in caches:
        with exclusive_use(cache.parent, cores=False):  # nothing is timed
            before = _size_bytes(cache)
            remove_marked(cache)
            freed_bytes += before - _size_bytes(cache)
    return freed_bytes


def _problem(folder: Path) -> str:
    """Returns why a folder without a cache is not that of a study; empty if it is."""
    if is_folder(folder / STUDIES) or is_folder_of(STUDY, folder):
        return ""
    none = f"{folder} holds no study; name the folder that `autotune study` wrote"
    return mistaken(folder, STUDY) or none


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
