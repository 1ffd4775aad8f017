"""``pagedcache replay``: what traces of real requests do to a memory and to a prefix cache."""

import click

from pagedcache.cli.replay_memory import memory
from pagedcache.cli.replay_prefix import prefix
from pagedcache.cli.replay_serve import serve


@click.group()
def replay() -> None:
    """Replay traces of real requests through the allocator.

    TRACE is a file in the format of Mooncake, Qwen (Bailian) or Azure, or of plain lengths, also as gzip; or the name
    of a trace that comes with the package: sharegpt, mooncake-conversation, mooncake-synthetic, azure-conversation,
    azure-code.
    """


replay.add_command(memory)
replay.add_command(prefix)
replay.add_command(serve)
