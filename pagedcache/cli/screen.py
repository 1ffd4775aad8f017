"""What the user sees: texts on standard output; progress and tables on standard error.

Several texts grow at the same time, but only one can be printed as it grows. They are printed in order: the first
one live, and each of the others, when its turn comes, with all that it has by then.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from pagedcache.cli.tables import facts_table

# A model file from a stranger must not be able to drive the terminal.
_VISIBLE = {code: 0xFFFD for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Screen:
    """The output of one command.

    Parameters
    ----------
    labels : sequence of str
        A headline for each text; an empty one is not printed.
    quiet : bool
        Print no progress.
    texts : bool
        Print texts.
    """

    def __init__(self, labels: Sequence[str] = (), *, quiet: bool, texts: bool = False) -> None:
        self._labels = labels
        self._show_texts = texts
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._progress: Progress | None = None
        self._live = 0  # index of the text that is printed as it grows
        self._begun = False  # its headline is printed
        self._kept = [""] * len(labels)  # what the others have
        self._ended = [False] * len(labels)
        self._on_terminal = sys.stdout.isatty()

    @contextmanager
    def download(self) -> Iterator[Callable[[int, int], None]]:
        """Show a bar from the first bytes of a download on."""
        try:
            yield lambda done, total: self._advance("downloading the model", done, total, DownloadColumn())
        finally:
            self._remove_bar()

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show that something is being done."""
        return self._console.status(what) if self._console.is_terminal else nullcontext()

    def prefill(self, done: int, total: int) -> None:
        """Show how much of the prompts is computed, until text appears or all is."""
        if not self._begun:
            self._advance("reading the prompts", done, total, MofNCompleteColumn())
        if done == total:
            self._remove_bar()

    def search(self, done: int, total: int) -> None:
        """Show how far a beam search is, until it is done."""
        self._advance("searching", done, total, MofNCompleteColumn())
        if done == total:
            self._remove_bar()

    def serve(self, way: str, done: int, total: int) -> None:
        """Show how many of the requests one way of serving is done with; several take turns."""
        self._advance(way, done, total, MofNCompleteColumn())
        if done == total:
            self._remove_bar()

    def text(self, index: int, piece: str, last: bool) -> None:
        """Take a piece of a text and print what is due."""
        self._kept[index] += piece
        self._ended[index] = last
        if not self._show_texts:
            return
        while self._live < len(self._labels) and (self._kept[self._live] or self._ended[self._live]):
            self._remove_bar()
            if not self._begun and self._labels[self._live]:
                click.secho(f"── {self._clean(self._labels[self._live])}", bold=True)
            self._begun = True
            click.echo(self._clean(self._kept[self._live]), nl=False)
            self._kept[self._live] = ""
            if not self._ended[self._live]:
                return
            click.echo()
            self._live += 1
            self._begun = False

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        self._console.print()
        self._console.print(facts_table(rows))

    def note(self, text: str) -> None:
        """Print a line about what happened."""
        self._console.print(text, style="dim", markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_bar()

    def _clean(self, text: str) -> str:
        return text.translate(_VISIBLE) if self._on_terminal else text

    def _advance(self, what: str, done: int, total: int, amount: ProgressColumn) -> None:
        if not self._console.is_terminal:
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), amount)
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task(what)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], description=what, completed=done, total=total)

    def _remove_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
