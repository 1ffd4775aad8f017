"""What makes two equal token streams different: namespaces, adapters, salts, images and audio.

The K/V of a token depends on more than token ids: on the adapter that the model ran with, on the picture
behind a placeholder. And streams that are equal in all of that may still have to be kept apart, because they
belong to different tenants. Every such fact is a `Key`; a prompt has a list of them.

A key enters the identity of exactly one block, the one that holds its first position. Later blocks differ
through their parents, and earlier ones stay shared. `block_keys` says which block gets which bytes::

    tokens   s s s s | s i i i | i i u u | u u          block_size 4: an image on 5..9, a salt from 10 on
    blocks      0    |    1    |    2    |  3
    keys             |  image  |  salt   |              block 0 is everybody's; 3 is the salt's through 2

The bytes are tagged and length-framed, so that different keys never give the same ones.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

__all__ = ["BlockKey", "Key", "Namespace", "Part", "adapter", "block_keys", "content", "frame", "parts", "salt"]

MAX_KIND = 64  # bytes of a kind
MAX_VALUE = 1024  # bytes of a value, a name or a secret; more goes through a hash first
MIN_SECRET = 16  # bytes of a secret: fewer can be guessed
MAX_POSITION = 2**31 - 1
NAMESPACE = "namespace"  # the kind of part that only a namespace makes

_HEADER = Struct("<HIII")  # bytes of the kind, offset, extent, bytes of the value


@dataclass(frozen=True, slots=True)
class Key:
    """One fact about the tokens of a prompt that their ids do not tell.

    `adapter`, `salt` and `content` make the usual ones; other kinds are the caller's to name.

    Parameters
    ----------
    kind : str
        What sort of fact, 1 to 64 bytes of UTF-8. Keys of different kinds are never equal.
    value : bytes or str
        1 to 1024 bytes, kept as bytes; a str stands for its UTF-8. It is not in the repr: a salt is a
        secret, and reprs end in logs.
    start : int
        First position, in tokens of the prompt, that the key is about.
    stop : int, optional
        Position behind the last one, for what lies in a range of placeholder tokens. Without it the key is
        about everything from `start` on, generated tokens included.

    Raises
    ------
    TypeError, ValueError
        A value that is empty, too long or of another type; a range that is negative or empty.

    Examples
    --------
    >>> Key("tools", "v7", start=2)
    Key(kind='tools', start=2, stop=None)
    >>> Key("image", b"cat", 4, 10) == content("cat", 4, 10)
    True
    """

    kind: str
    value: bytes | str = field(repr=False)
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str):
            raise TypeError(f"kind must be a str, not {type(self.kind).__name__}")
        _sized(self.kind, "kind", 1, MAX_KIND)
        if self.kind == NAMESPACE:
            raise ValueError(f"kind {NAMESPACE!r} is reserved: use the verb's own namespace argument")
        put = object.__setattr__  # frozen for everyone else
        put(self, "value", _sized(self.value, f"the value of {self.kind!r}", 1, MAX_VALUE))
        put(self, "start", _position(self.start, "start"))
        if self.stop is not None:
            put(self, "stop", _position(self.stop, "stop"))
            if self.stop <= self.start:
                raise ValueError(f"{self.kind!r} covers nothing: start is {self.start}, stop is {self.stop}")


def adapter(name: bytes | str, start: int = 0) -> Key:
    """Tokens from `start` on were computed with this adapter (LoRA and its kin).

    The name must change when the weights do. Stacked adapters are one name.
    """
    return Key("adapter", name, start)


def salt(value: bytes | str, start: int = 0) -> Key:
    """Tokens from `start` on are shared only among prompts with the same salt.

    What lies before, such as a system prompt, is shared with everybody, to the last full block.
    """
    return Key("salt", value, start)


def content(digest: bytes | str, start: int, stop: int, kind: str = "image") -> Key:
    """The placeholder tokens `start` to `stop` stand for this image, sound or other content.

    The digest must cover all that the encoder sees: the pixels after resizing, say, not the file's name.
    """
    return Key(kind, digest, start, stop)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A border that no hit, length or event crosses.

    A plain str or bytes means the same as ``Namespace(name)``; None and the empty name are one and the same
    namespace, the default, and differ from every other.

    Parameters
    ----------
    name : bytes or str
        At most 1024 bytes, kept as bytes; a str stands for its UTF-8. The name alone says which namespace it is.
    secret : bytes, optional
        16 to 1024 bytes that key the digests of stored blocks, so that who sees a store cannot test guesses of
        what was cached. With another secret stored blocks are not found; blocks in memory are.

    Examples
    --------
    >>> Namespace("tenant-7", secret=b"from secrets.token_bytes(32)...")
    Namespace(name=b'tenant-7')
    """

    name: bytes | str = b""
    secret: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "name", _sized(self.name, "the name of a namespace", 0, MAX_VALUE))
        if self.secret is not None:
            if not isinstance(self.secret, bytes):
                raise TypeError(f"secret must be bytes, not {type(self.secret).__name__}")
            _sized(self.secret, "secret", MIN_SECRET, MAX_VALUE)

    @classmethod
    def of(cls, namespace: "Namespace | bytes | str | None") -> "Namespace":
        """What a verb's namespace argument means."""
        return namespace if isinstance(namespace, Namespace) else cls(b"" if namespace is None else namespace)


class Part(NamedTuple):
    """A key as one block sees it."""

    kind: str
    offset: int  # of its first position in the block
    extent: int  # positions it covers, in later blocks too; 0 for no end
    value: bytes


class BlockKey(NamedTuple):
    """The parts that start in one block, and what cutting the sequence short does to them.

    A cut at a length >= `stop` leaves them right. One at <= `start` removes them all, and the entry with them.
    Between the two what is left has no key that describes it: such a row must publish no more.
    """

    block: int  # logical block
    frame: bytes  # see `frame`
    start: int  # least position of a part; -1 where a part has no end, since that binds later tokens as well
    stop: int  # greatest stop of a part, or start of one that has no end; 0 for a namespace


def frame(parts: Iterable[Part]) -> bytes:
    """Parts as bytes: equal exactly where the parts are, in whatever order they come.

    Each part is a header of four little-endian integers (bytes of the kind, 16 bits; offset, extent and bytes of
    the value, 32 bits each), then kind and value. Since a part says how long it is, joined parts can be taken
    apart in one way only.

    Examples
    --------
    >>> frame([Part("image", offset=1, extent=6, value=b"cat")])
    b'\\x05\\x00\\x01\\x00\\x00\\x00\\x06\\x00\\x00\\x00\\x03\\x00\\x00\\x00imagecat'
    """
    framed = []
    for part in sorted(parts):
        kind = part.kind.encode()
        framed += [_HEADER.pack(len(kind), part.offset, part.extent, len(part.value)), kind, part.value]
    return b"".join(framed)


def parts(framed: bytes) -> list[Part]:
    """The parts that `frame` has joined, sorted.

    Examples
    --------
    >>> parts(frame([Part("salt", 2, 0, b"t7"), Part("image", 1, 6, b"cat")]))[1]
    Part(kind='salt', offset=2, extent=0, value=b't7')
    """
    found, at = [], 0
    while at < len(framed):
        width, offset, extent, size = _HEADER.unpack_from(framed, at)
        at, kind = at + _HEADER.size + width + size, framed[at + _HEADER.size :][:width]
        found.append(Part(kind.decode(), offset, extent, framed[at - size : at]))
    return found


def block_keys(
    namespace: Namespace | bytes | str | None, keys: Sequence[Key] | None, block_size: int, length: int
) -> list[BlockKey]:
    """The bytes that enter the identity of each block of one prompt, beside its tokens.

    Parameters
    ----------
    namespace : Namespace, bytes, str or None
        Enters block 0.
    keys : sequence of Key, or None
        In any order: one per kind and start, and ranges that do not overlap.
    block_size : int
        Tokens per block.
    length : int
        Tokens of the prompt. Ranges end within it. Keys without an end may start right behind it: they are
        about what is generated.

    Returns
    -------
    list of BlockKey
        One for each block in which a part starts, in order; blocks are 0 to ``length // block_size``.

    Raises
    ------
    TypeError, ValueError
        Not a list of keys, or keys that contradict the prompt or each other.

    Examples
    --------
    >>> [(key.block, key.start, key.stop) for key in block_keys(None, [salt("t7", 10), content("cat", 5, 10)], 4, 14)]
    [(1, 5, 10), (2, -1, 10)]
    """
    parts: dict[int, list[Part]] = {}
    spans: dict[int, tuple[int, int]] = {}
    if name := _encoded(Namespace.of(namespace).name):
        parts[0] = [Part(NAMESPACE, 0, 0, name)]
        spans[0] = (-1, 0)
    for key in () if keys is None else _checked(keys, length):
        block, offset = divmod(key.start, block_size)
        extent = 0 if key.stop is None else key.stop - key.start
        parts.setdefault(block, []).append(Part(key.kind, offset, extent, _encoded(key.value)))
        start, stop = (-1, key.start) if key.stop is None else (key.start, key.stop)
        least, greatest = spans.get(block, (start, stop))
        spans[block] = min(least, start), max(greatest, stop)
    return [BlockKey(block, frame(parts[block]), *spans[block]) for block in sorted(parts)]


def _checked(keys: Sequence[Key], length: int) -> list[Key]:
    """The keys of one prompt by start, free of contradictions."""
    if not isinstance(keys, Sequence):
        raise TypeError(f"the keys of a prompt must be a list of Key, not {type(keys).__name__}")
    for key in keys:
        if not isinstance(key, Key):
            raise TypeError(f"the keys of a prompt must be Key, not {type(key).__name__}; see pagedcache.keys")
        end = key.start if key.stop is None else key.stop
        if end > length:
            raise ValueError(f"{key} goes beyond its prompt of {length} tokens")
    ordered = sorted(keys, key=lambda key: key.start)
    seen: set[tuple[str, int]] = set()
    covered: Key | None = None
    for key in ordered:
        if (key.kind, key.start) in seen:
            raise ValueError(f"two keys {key.kind!r} start at {key.start}; make one value of both")
        seen.add((key.kind, key.start))
        if key.stop is not None:
            if covered is not None and covered.stop is not None and key.start < covered.stop:
                raise ValueError(f"{covered} and {key} overlap; a placeholder stands for one content")
            covered = key
    return ordered


def _position(value: int, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    value = operator.index(value)
    if not 0 <= value <= MAX_POSITION:
        raise ValueError(f"{name} is {value}; it must be 0 to {MAX_POSITION}")
    return value


def _sized(value: bytes | str, what: str, low: int, high: int) -> bytes:
    if not isinstance(value, (bytes, str)):
        raise TypeError(f"{what} must be bytes or str, not {type(value).__name__}")
    try:
        encoded = _encoded(value)
    except UnicodeEncodeError:
        raise ValueError(f"{what} is a str without a UTF-8 form (a lone surrogate); hand in bytes") from None
    if not low <= len(encoded) <= high:
        hint = "; hand in a digest of it" if len(encoded) > high else ""
        raise ValueError(f"{what} has {len(encoded)} bytes; it must have {low} to {high}{hint}")
    return encoded


def _encoded(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
