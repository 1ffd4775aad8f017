"""The text of one sequence as it grows: what of it may be shown, and whether it has come to a stop string."""

from pagedcache.serving.models import TextStream, Tokenizer


class Text:
    """Turns tokens into text, and ends it at the first of some strings.

    What may turn out to be the beginning of a stop string is held back until it is known.

    Parameters
    ----------
    tokenizer : Tokenizer
    stop : tuple of str
        None of them empty.

    Attributes
    ----------
    stopped : bool
        A stop string came; neither it nor anything after it is part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self._stream = TextStream(tokenizer)
        self._stop = stop
        self._held = ""  # what ends like the beginning of a stop string

    def push(self, token: int) -> str:
        """Take the next token and return what may be shown."""
        return self._show(self._stream.push(token))

    def finish(self) -> str:
        """Return what is left when the text ends for another reason."""
        text = self._show(self._stream.finish())
        text, self._held = text + self._held, ""
        return text

    def _show(self, new: str) -> str:
        text, self._held = self._held + new, ""
        if self.stopped:
            return ""
        if found := [at for stop in self._stop if (at := text.find(stop)) >= 0]:
            self.stopped = True
            return text[: min(found)]
        longest = max((_overlap(text, stop) for stop in self._stop), default=0)
        if longest:
            text, self._held = text[:-longest], text[-longest:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` begin `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
