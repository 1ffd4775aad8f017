"""Modules that only an extra brings."""

import importlib
from typing import Any


def needed(module: str, extra: str) -> Any:
    """Import a module, or say which extra has it.

    Raises
    ------
    ImportError
        It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed: pip install "pagedcache[{extra}]"') from error
