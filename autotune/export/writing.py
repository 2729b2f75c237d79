"""Writes an export, and never over a file that is there."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.deploy.config import TunedConfig, config_file
from autotune.deploy.files import create, open_file
from autotune.deploy.loader import check_files
from autotune.errors import FormatError, RequestError, StorageError, did_you_mean
from autotune.export import genai, ort_config
from autotune.export.rendering import Copy, Rendering
from autotune.export.targets import TARGETS

_FOLDER_END = ".autotune"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that was written."""

    target: str
    files: Sequence[Path]
    lost: Sequence[str]
    use: str
    needs: Sequence[str]


def export(
    config_path: Path,
    target: str,
    folder: Path | None = None,
    *,
    accept_processor: bool = False,
) -> Exported:
    """Writes a tuned config in the form of another program.

    Args:
        target: The name of a target in :data:`autotune.export.targets.TARGETS`.
        folder: Where the files are written; beside the config if None.
        accept_processor: Whether the processors that will run it are known to have what the config
            needs; no target but ``python`` checks it.

    Raises:
        ConfigError: the config or its model files are wrong.
        RequestError: there is no such target, a file is there already, or the answers would be
            wrong on some processors and `accept_processor` is false.
        StorageError: writing to disk failed.
    """
    if target not in TARGETS:
        near = did_you_mean(target, TARGETS)
        raise RequestError(f"--to must be one of {', '.join(TARGETS)}, not '{target}'.{near}")
    config_path = config_file(config_path)
    config = TunedConfig.read(config_path)
    source = check_files(config_path, config, read_all=False)
    if target == "ort_config":
        ort_config.check_model(source / config.model.file)
    name = model_name(config_path)
    rendering = TARGETS[target](config, config_path.name, name)
    if target == "genai":
        rendering = genai.complete(rendering, config_path)
    if rendering.needs and not accept_processor:
        raise RequestError(
            f"{config_path} needs {'; '.join(rendering.needs)}, and an export to {target} does not "
            "check the processor. Add --accept-processor if every machine that will run it has "
            "that, or export it to python, which checks it"
        )
    folder = config_path.parent if folder is None else folder
    if target == "ort_config" and folder.resolve() != source.resolve():
        beside = {item.file: Copy(source=item.file) for item in config.model.data_files}
        rendering = replace(rendering, copies={**rendering.copies, **beside})
    files = _write(rendering, source, folder)
    return Exported(
        target=target,
        files=files,
        lost=[*rendering.lost, *_runtime(config, target)],
        use=rendering.use,
        needs=rendering.needs,
    )


def _runtime(config: TunedConfig, target: str) -> list[str]:
    """Returns which ONNX Runtime the other program must have, where the study's was another."""
    needed = config.requires.runtime
    if needed is None or target == "python":  # the loader in it checks that
        return []
    return [f"the ONNX Runtime that it was measured with, {needed.package} {needed.version}"]


def model_name(config_path: Path) -> str:
    """Returns the name of what the config is for: ``cnn`` of ``cnn.autotune/best.json``."""
    folder = config_path.absolute().parent.name
    return folder.removesuffix(_FOLDER_END) if folder.endswith(_FOLDER_END) else config_path.stem


def _write(rendering: Rendering, source: Path, folder: Path) -> list[Path]:
    """Writes the files of `rendering`, or none of them; returns their paths."""
    names = [*rendering.texts, *rendering.copies]
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file; name a folder with --out DIR")
    if taken := [folder / name for name in names if (folder / name).is_symlink()]:
        raise RequestError(f"{taken[0]} is a link; name another folder with --out DIR")
    if taken := [folder / name for name in names if (folder / name).exists()]:
        raise RequestError(
            f"{taken[0]} is there already, and nothing is overwritten; remove it, or name another "
            "folder with --out DIR"
        )
    written: list[Path] = []
    try:
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with create(path) as file:
                written.append(path)
                if name in rendering.texts:
                    file.write(rendering.texts[name].encode())
                else:
                    copy = rendering.copies[name]
                    with open_file(source / copy.source) as original:
                        shutil.copyfileobj(original, file, 1 << 20)
                    file.write(copy.appended)
    except BaseException as error:  # Ctrl-C too leaves no half of a file
        for path in written:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError | FormatError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"cannot write the export to {folder}: {reason}") from None
    return written
