"""The model that a command runs."""

from pathlib import Path

from pagedcache.cli.screen import Screen
from pagedcache.serving.models import Model, Tokenizer, find_model, load_model

__all__ = ["load"]


def load(model: Path | None, screen: Screen) -> tuple[Path, Model, Tokenizer]:
    """Find the model's file, fetched once if none is given, and read it; the screen shows both."""
    with screen.download() as progress:
        path = find_model(model, progress=progress)
    with screen.waiting("loading the model"):
        return path, *load_model(path)
