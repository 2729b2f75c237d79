"""Runtimes in the user's cache: a folder each, which stands before the user's own packages.

Such a folder has one distribution of ONNX Runtime, and the packages that it needs but those that
autotune needs too. So the folder is the same whichever environment made it, and several may share
it. A child process that gets the folder first on its import path has everything else from the user:
autotune, NumPy, the interpreter. The folder is made under a temporary name and renamed at the end,
so a runtime is there whole or not at all.
"""

import contextlib
import json
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import filelock
import platformdirs
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autotune.deploy.files import read_json
from autotune.deploy.options import OWN
from autotune.deploy.providers import DISTRIBUTIONS
from autotune.deploy.records import Whole, from_plain, to_plain
from autotune.errors import FormatError, RequestError, StorageError
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.process.scratch import carries_mark, remove_marked, write_mark
from autotune.runtimes.answer import RuntimeAnswer
from autotune.runtimes.installing import install
from autotune.runtimes.names import ALL, Release, builds_for, read_release, read_releases

OnNote = Callable[[str], None]

_RECORD = "runtime.json"
_LARGEST_BYTES = 1 << 20
_CHILD = "autotune.runtimes.ask_child"
_TIME_LIMIT_S = 300.0
# Every environment of autotune has them, through its own requirements.
_OF_AUTOTUNE = ("numpy", "packaging", "protobuf")
_MAKING = re.compile(r"\.making-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class RuntimeEnvironment:
    """A runtime that was added.

    Attributes:
        name: Name of the distribution.
        version: Its version.
        providers: Its execution providers, by ONNX Runtime's names.
        size_bytes: Size of all of its files.
    """

    name: str
    version: str
    providers: tuple[str, ...]
    size_bytes: Whole

    @property
    def release(self) -> Release:
        """Its name and version."""
        return Release(self.name, self.version)


def root() -> Path:
    """Returns the folder of the runtimes for this kind of Python, in the user's cache."""
    kind = f"{sys.implementation.cache_tag}-{platform.system()}-{platform.machine()}".lower()
    return Path(platformdirs.user_cache_dir("autotune")) / "runtimes" / kind


def site_of(text: str) -> Path | None:
    """Returns the folder of the runtime ``NAME==VERSION``; None for the user's own."""
    if text == OWN:
        return None
    name, _, version = text.partition("==")
    return _place(Release(name, version))


def _place(release: Release) -> Path:
    return root() / f"{release.name}-{release.version}"


def own_release() -> Release | None:
    """Returns the ONNX Runtime of the user's environment; None where there is none.

    Raises:
        RequestError: there are two flavours, of which one has overwritten files of the other.
    """
    releases = []
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            releases.append(Release(name, metadata.version(name)))
    if len(releases) > 1:
        names = " and ".join(release.name for release in releases)
        raise RequestError(
            f"{names} are installed in one environment, and each has overwritten files of the "
            f"other; type pip uninstall -y {' '.join(r.name for r in releases)}, then install one"
        )
    return releases[0] if releases else None


def added() -> list[RuntimeEnvironment]:
    """Returns the runtimes that were added and are whole, by name and version."""
    if not root().is_dir():
        return []
    environments = []
    for folder in root().iterdir():
        with contextlib.suppress(FormatError):
            environments.append(_read(folder))
    return sorted(environments, key=lambda each: (each.name, each.release.numbers))


def find(releases: Sequence[Release]) -> list[RuntimeEnvironment]:
    """Returns these runtimes; of a name alone the newest that was added.

    Raises:
        RequestError: one was not added, or does not take a package of this environment.
    """
    everything = added()
    missing = [r for r in releases if not any(_fits(each, r) for each in everything)]
    if missing:
        names = ",".join(map(str, missing))
        raise RequestError(f"{names} is not there; type autotune runtimes add {names}")
    environments = [[each for each in everything if _fits(each, r)][-1] for r in releases]
    for each in environments:
        _check_shared(each.release, _place(each.release))
    return list(dict.fromkeys(environments))


def is_there(text: str) -> bool:
    """Returns whether the runtime ``NAME==VERSION`` was added and can be used here."""
    try:
        find([read_release(text)])
    except RequestError:
        return False
    return True


def missing_builds() -> list[Release]:
    """Returns the builds for this kind of machine of which no version is here."""
    own = own_release()
    here = {own.name if own else "", *(each.name for each in added())}
    return [Release(name, "") for name in builds_for() if name not in here]


def chosen(texts: Sequence[str], note: OnNote | None = None) -> list[RuntimeEnvironment]:
    """Returns the runtimes that ``--runtimes`` names, the user's own apart.

    Args:
        note: Called with a sentence for each build that ``all`` installs; None installs nothing.

    Raises:
        RequestError: one of them is none, was not added, or is broken.
    """
    own = own_release()
    if list(texts) == [ALL]:
        if note is not None:
            _add_missing(note)
        return [each for each in find([e.release for e in added()]) if each.release != own]
    releases = [r for r in read_releases(texts) if r not in (own, own and Release(own.name, ""))]
    return find(releases)


def _fits(environment: RuntimeEnvironment, release: Release) -> bool:
    return environment.name == release.name and release.version in ("", environment.version)


def add(release: Release, note: OnNote) -> RuntimeEnvironment:
    """Returns a runtime; installs it if it is not there.

    Args:
        release: The runtime; without a version, the newest one of the package index.
        note: Called with what goes on, a sentence each.

    Raises:
        RequestError: the index has no such version or cannot be reached, or the runtime does not
            work here.
        StorageError: the disk is full.
    """
    own_release()  # two flavours in the user's environment would make every comparison worthless
    with _folder() as place, _alone(place):
        if release.version:
            with contextlib.suppress(FormatError):
                known = _read(_place(release))
                _check_shared(release, _place(release))
                note(f"{release} is there already.")
                return known
        with _making(place) as beside:
            made = _make(release, beside, note)
            final = _place(made.release)
            remove_marked(final)
            beside.rename(final)
    return made


def _add_missing(note: OnNote) -> None:
    """Installs each build for this kind of machine that is not here; says which and where."""
    for release in missing_builds():
        try:
            made = add(release, note)
        except RequestError as error:
            note(f"{error}. It is left out.")
        else:
            size_mib = round(made.size_bytes / 2**20)
            note(f"Installed {made.release} in {_place(made.release)}, {size_mib} MiB.")
    if not added():
        note("No other build of ONNX Runtime is here for this kind of machine.")


def remove(release: Release) -> int:
    """Removes a runtime, whole or broken; of a name alone every version. Returns its bytes.

    Raises:
        RequestError: it is not there.
    """
    with _folder() as place, _alone(place):
        pattern = f"{release.name}-{release.version or '[0-9]*'}"
        folders = [path for path in place.glob(pattern) if carries_mark(path)]
        if not folders:
            known = ", ".join(str(each.release) for each in added()) or "there is none"
            raise RequestError(f"{release} was not added ({known}); autotune runtimes lists them")
        size = sum(map(_size, folders))
        for folder in folders:
            (folder / _RECORD).unlink(missing_ok=True)  # half of it is none
            remove_marked(folder)
        return size


def ask(site: Path | None, names: Sequence[str] = ()) -> RuntimeAnswer:
    """Returns what the runtime in a folder says of itself.

    Args:
        site: The folder; None for the user's own.
        names: Names of options that are looked for in its library.

    Raises:
        ChildFailure: it cannot be imported.
    """
    with Child(_CHILD, memory_limit(), site) as child:
        return child.request({"do": "ask", "names": list(names)}, _TIME_LIMIT_S, RuntimeAnswer)


def check_model(release: Release, model: Path) -> None:
    """Refuses a runtime that does not open a model, as where it is too old for the opset.

    Raises:
        RequestError: that is so.
    """
    with Child(_CHILD, memory_limit(), _place(release)) as child:
        request = {"do": "open", "model": str(model.absolute())}
        try:
            child.request(request, _TIME_LIMIT_S, RuntimeAnswer)
        except ChildFailure as failure:
            problem = failure.message[:300]
            message = f"{release} cannot open {model.name}, leave it out: {problem}"
            raise RequestError(message) from None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Gives the folder of all runtimes, which is made if it is not there."""
    place = root()
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield place
    except OSError as error:
        raise StorageError(
            f"cannot write to {place}: {error.strerror}; make room or set XDG_CACHE_HOME to "
            "another folder, and type the same command again"
        ) from None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lets one process at a time change the runtimes; removes what a killed one left behind."""
    with filelock.FileLock(place / ".lock"):
        for folder in place.iterdir():
            if _MAKING.fullmatch(folder.name):
                scratch.end_processes(folder)
                remove_marked(folder)
        yield


@contextlib.contextmanager
def _making(place: Path) -> Iterator[Path]:
    """Gives a new folder beside the others, and removes it unless it was renamed."""
    beside = place / f".making-{secrets.token_hex(6)}"
    beside.mkdir(mode=0o700)
    try:
        write_mark(beside)
        yield beside
    finally:
        remove_marked(beside)


def _make(release: Release, beside: Path, note: OnNote) -> RuntimeEnvironment:
    """Installs a runtime into the folder `beside`, and returns what it is."""
    work = beside / "tmp"
    work.mkdir()
    note(f"Installing {release}; this downloads up to a few hundred MiB.")
    install([str(release)], beside, work, alone=True)
    everything = _requirements(release.name, beside)
    if needed := [str(r) for r in everything if canonicalize_name(r.name) not in _OF_AUTOTUNE]:
        note(f"It needs {', '.join(needed)} as well.")
        install(needed, beside, work, alone=False)
    _check_shared(release, beside)
    shutil.rmtree(work, ignore_errors=True)
    version = _versions_in(beside)[release.name]
    try:
        answer = ask(beside)
    except ChildFailure as failure:
        raise RequestError(
            f"{release.name} {version} was installed and cannot be used here: {failure.message}"
        ) from None
    if not Path(answer.place).is_relative_to(beside):
        raise RequestError(f"{release.name} {version} holds no ONNX Runtime")
    made = RuntimeEnvironment(
        name=release.name,
        version=version,
        providers=answer.providers,
        size_bytes=_size(beside),
    )
    (beside / _RECORD).write_text(json.dumps(to_plain(made), indent=2), encoding="utf-8")
    return made


def _requirements(name: str, folder: Path) -> list[Requirement]:
    """Returns what the distribution in a folder requires on this machine."""
    (own,) = (d for d in metadata.distributions(path=[str(folder)]) if _name_of(d) == name)
    requirements = map(Requirement, own.requires or [])
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]


def _check_shared(release: Release, folder: Path) -> None:
    """Refuses a distribution that does not take what this environment has for it.

    Raises:
        RequestError: that is so; the message says what to install.
    """
    for each in _requirements(release.name, folder):
        name = canonicalize_name(each.name)
        here = metadata.version(name) if name in _OF_AUTOTUNE else ""
        if here and not each.specifier.contains(here, prereleases=True):
            raise RequestError(
                f"{release} needs {each}, and this environment has {name} {here}; type pip install "
                f'"{each}", or use another release'
            )


def _name_of(distribution: metadata.Distribution) -> str:
    return canonicalize_name(distribution.metadata["Name"])


def _versions_in(folder: Path) -> dict[str, str]:
    """Returns the versions of all distributions in a folder, by name."""
    return {_name_of(d): d.version for d in metadata.distributions(path=[str(folder)])}


def _read(folder: Path) -> RuntimeEnvironment:
    """Returns what the record in a folder says."""
    if not carries_mark(folder):
        raise FormatError(f"{folder} is not one of autotune's")
    environment = from_plain(RuntimeEnvironment, read_json(folder / _RECORD, _LARGEST_BYTES))
    if _place(read_release(str(environment.release))) != folder:
        raise FormatError(f"{folder} holds another runtime")
    return environment


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
