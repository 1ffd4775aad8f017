"""The folder where model files are kept, and whether a file is the one that is meant."""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KnownFile", "model_folder", "refuse_open_folder"]


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of which one content is accepted."""

    name: str
    sha256: str
    nbytes: int

    def is_at(self, path: Path) -> bool:
        """Whether the file lies there."""
        if not path.is_file() or path.stat().st_size != self.nbytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def kept_in(self, folder: Path) -> Path | None:
        """Return the file's path in a folder that nobody else can write to, None if it is not there.

        Raises
        ------
        PermissionError
            The folder is open to other users, or the file is a symbolic link.
        """
        if not folder.exists():
            return None
        refuse_open_folder(folder)
        path = folder / self.name
        if path.is_symlink():
            raise PermissionError(f"{path} is a symbolic link; remove it, or name its target with --model")
        return path if self.is_at(path) else None


def model_folder() -> Path:
    """Return the folder where models are kept, which need not exist.

    PAGEDCACHE_MODEL_DIR names it; else it is ``pagedcache`` in the user's cache folder.
    """
    if chosen := os.environ.get("PAGEDCACHE_MODEL_DIR"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "pagedcache"


def refuse_open_folder(folder: Path) -> None:
    """Raise if others could put a file into the folder."""
    if folder.is_symlink() or (os.name == "posix" and folder.stat().st_mode & 0o002):
        raise PermissionError(f"{folder} is a symbolic link or writable by every user; models are not kept there")
