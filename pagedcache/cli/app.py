"""The command line: its commands, and how errors end it."""

from collections.abc import Sequence

import click

from pagedcache.cli.bench import bench
from pagedcache.cli.cache import cache
from pagedcache.cli.chat import chat
from pagedcache.cli.doctor import doctor
from pagedcache.cli.generate import generate
from pagedcache.cli.inspect import inspect
from pagedcache.cli.plan import plan
from pagedcache.cli.replay import replay
from pagedcache.cli.scenarios import scenarios
from pagedcache.cli.tune import tune
from pagedcache.errors import PagedCacheError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pagedcache", message="%(prog)s %(version)s")
def app() -> None:
    """A framework-free paged KV cache: run a real model on it, plan one, replay traces, or see what runs here."""


app.add_command(bench)
app.add_command(cache)
app.add_command(chat)
app.add_command(doctor)
app.add_command(generate)
app.add_command(inspect)
app.add_command(plan)
app.add_command(replay)
app.add_command(scenarios)
app.add_command(tune)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; what goes wrong is one line on standard error."""
    try:
        status = app.main(arguments, prog_name="pagedcache", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except (PagedCacheError, OSError, MemoryError, ValueError, NotImplementedError) as error:
        click.echo(f"pagedcache: {' '.join(str(error).split()) or type(error).__name__}", err=True)
        return 1
    return status if isinstance(status, int) else 0
