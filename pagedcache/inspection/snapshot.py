"""Who had which block at one moment: plain data, of a live cache or of a saved file, and as JSON."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.errors import CorruptFile
from pagedcache.saved.saved_file import SavedFile

__all__ = ["SequenceShot", "Snapshot"]

FORMAT = "pagedcache snapshot 1"
MOST_BYTES = 2**28  # of a file that is read


@dataclass(frozen=True, slots=True)
class SequenceShot:
    """One sequence.

    Attributes
    ----------
    name : str
        Its handle, or which one it is of a saved file.
    length : int
        Committed tokens, left pads included.
    blocks : list of int
        Block of each logical block, in the first layer group; those that are allotted ahead included.
    """

    name: str
    length: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The blocks of a cache: who has them.

    Attributes
    ----------
    block_size : int
        Tokens of a block.
    num_blocks : int
        Usable blocks, ids 1 to num_blocks; of a saved file, those that are in it.
    holders : list of int
        References of each block from id 1 on, of sequences, pins and callers.
    published : list of int
        Blocks of all layer groups that the prefix cache can find.
    sequences : list of SequenceShot
        Those in memory.
    """

    block_size: int
    num_blocks: int
    holders: list[int]
    published: list[int]
    sequences: list[SequenceShot]

    @classmethod
    def of(cls, cache: KVCache) -> "Snapshot":
        """Take one of a live cache; it changes nothing, and other threads wait meanwhile."""
        with cache._open():
            table = cache.sequences
            blocks = table.published().blocks
            return cls(
                block_size=table.block_size,
                num_blocks=cache.num_blocks,
                holders=cache.pool.refcounts()[1:].tolist(),
                published=np.sort(blocks[blocks > 0]).tolist(),
                sequences=[
                    SequenceShot(str(handle), table.position(handle), table.block_table(handle).tolist())
                    for handle in table.handles().tolist()
                ],
            )

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> "Snapshot":
        """Read what `write` wrote, or what a file of `KVCache.save` holds, without its bytes of K and V.

        Raises
        ------
        CorruptFile
            It is damaged, or neither of the two.
        ForeignFormat
            It is of another version.
        OSError
            It cannot be read.
        """
        with Path(path).open("rb") as file:
            if file.read(1) == b"{":
                file.seek(0)
                return cls._of_json(file.read(MOST_BYTES + 1), str(path))
        with SavedFile.open(path) as saved:
            return cls._of_saved(saved)

    @classmethod
    def _of_saved(cls, saved: SavedFile) -> "Snapshot":
        """Records of a file count from 0, and blocks of a snapshot from 1."""
        holders = np.zeros(saved.num_blocks, np.int64)
        published: set[int] = set()
        sequences: list[SequenceShot] = []
        for path in saved.manifest.paths:
            own = path.blocks[path.blocks >= 0]
            if path.is_sequence:
                np.add.at(holders, own, 1)
                sequences.append(SequenceShot(str(len(sequences)), path.position, _main(path.blocks)))
            if path.known:
                full = path.blocks[: path.position // saved.form.block_size]
                published.update((full[full >= 0] + 1).tolist())
        return cls(saved.form.block_size, saved.num_blocks, holders.tolist(), sorted(published), sequences)

    @classmethod
    def _of_json(cls, text: bytes, where: str) -> "Snapshot":
        if len(text) > MOST_BYTES:
            raise CorruptFile(f"{where} has more than {MOST_BYTES} bytes, which no snapshot has")
        try:
            told = json.loads(text)
            if told.pop("format") != FORMAT:
                raise ValueError(f"it is no {FORMAT!r}")
            told["sequences"] = [SequenceShot(**sequence) for sequence in told["sequences"]]
            shot = cls(**told)
            shot._require_sense()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise CorruptFile(f"{where} is no snapshot: {error}") from error
        return shot

    def _require_sense(self) -> None:
        numbers = [self.block_size, self.num_blocks, *self.holders, *self.published]
        numbers += [number for shot in self.sequences for number in (shot.length, *shot.blocks)]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a number in it is none, or below 0")
        ids = [*self.published, *(block for shot in self.sequences for block in shot.blocks)]
        if self.block_size < 1 or len(self.holders) != self.num_blocks or max(ids, default=0) > self.num_blocks:
            raise ValueError(f"it tells of {self.num_blocks} blocks, and of others")

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, for `of_file` and ``pagedcache inspect``. No token ids are in it."""
        Path(path).write_text(json.dumps({"format": FORMAT, **asdict(self)}), encoding="ascii")

    # -- counts -----------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return sum(count > 0 for count in self.holders)

    @property
    def shared(self) -> int:
        """Of these, blocks with several holders."""
        return sum(count > 1 for count in self.holders)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and the prefix cache can find."""
        return sum(self.holders[block - 1] == 0 for block in self.published)

    @property
    def free(self) -> int:
        """Blocks that hold nothing that anybody could want."""
        return self.num_blocks - self.used - self.cached

    @property
    def utilisation(self) -> float:
        """Share of the sequences' memory that holds a token, each shared block counted once."""
        kept: dict[int, int] = {}
        for shot in self.sequences:
            for number, block in enumerate(shot.blocks):
                tokens = min(max(shot.length - number * self.block_size, 0), self.block_size)
                kept[block] = max(kept.get(block, 0), tokens)
        kept.pop(0, None)
        return sum(kept.values()) / (len(kept) * self.block_size) if kept else 0.0

    def counts(self) -> dict[str, Any]:
        """Return all counts by name."""
        names = ("block_size", "num_blocks", "used", "shared", "cached", "free", "utilisation")
        return {name: getattr(self, name) for name in names} | {"sequences": len(self.sequences)}


def _main(blocks: NDArray[np.int32]) -> list[int]:
    table: list[int] = (blocks[:, 0] + 1).tolist()
    return table
