"""The ``pagedcache`` command. Importing this needs none of the extras, so that their absence can be explained."""

import sys
from collections.abc import Sequence

_EXTRAS = dict.fromkeys(["click", "rich", "threadpoolctl", "gguf", "tokenizers"], "cli,models")
_EXTRAS |= {"matplotlib": "plot"}  # module -> the extras that bring it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        ``sys.argv[1:]`` if not given.

    Returns
    -------
    int
        0, or 1 after an error, 2 after wrong usage, 130 after an interrupt.
    """
    try:
        from pagedcache.cli.app import run

        return run(arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        print(f'pagedcache: {missing} is not installed: pip install "pagedcache[{_EXTRAS[missing]}]"', file=sys.stderr)
        return 1
