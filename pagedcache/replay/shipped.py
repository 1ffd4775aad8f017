"""The traces that come with the package: see data/README.md for where they are from and under which licences."""

from dataclasses import replace
from importlib.resources import as_file, files

from pagedcache._sizes import one_of
from pagedcache.replay.readers import read_trace
from pagedcache.replay.trace import Trace

__all__ = ["SHIPPED", "shipped_trace"]

SHIPPED = {
    "sharegpt": "sharegpt_lengths.npz",
    "mooncake-conversation": "mooncake_conversation_1500.jsonl.gz",
    "mooncake-synthetic": "mooncake_synthetic_800.jsonl.gz",
    "azure-conversation": "azure_2023_conversation_3000.csv.gz",
    "azure-code": "azure_2023_code_3000.csv.gz",
}


def shipped_trace(name: str) -> Trace:
    """Return a trace that comes with the package.

    Parameters
    ----------
    name : str
        sharegpt (14,906 pairs of lengths), mooncake-conversation, mooncake-synthetic, azure-conversation or
        azure-code (the first requests of each).

    Raises
    ------
    ValueError
        There is no such trace; the message lists those that there are.

    Examples
    --------
    >>> trace = shipped_trace("sharegpt")
    >>> len(trace), round(float(trace.prompts.mean())), round(float(trace.outputs.mean()))
    (14906, 224, 231)
    """
    with as_file(files("pagedcache.replay") / "data" / SHIPPED[one_of("name", name, SHIPPED)]) as path:
        return replace(read_trace(path), name=name)
