"""Checksums, and reads that verify them."""

import os

import numpy as np
import pytest

from pagedcache.tiers import _checked
from pagedcache.tiers._checked import checksums, crc32c, read_blocks, read_checked, write_checked
from pagedcache.tiers._copies import copy_records

RANDOM = np.random.default_rng(1)


@pytest.fixture(params=[(True, True), (True, False), (False, False)], ids=["folding", "instruction", "table"])
def either_way(request):
    """Run with all that the processor has, with its instruction for CRCs, and without."""
    _checked._use_instruction(*request.param)
    yield
    _checked._use_instruction(True)


# RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_vectors(either_way, data, crc):
    assert crc32c(data) == crc


SIZES = [1, 7, 8, 9, 255, 256, 257, 319, 320, 511, 512, 575, 1000, 2047, 2048, 6143, 6144, 6145, 20000]


@pytest.mark.parametrize("size", SIZES)
def test_all_ways_agree_at_any_cut(size):
    data = RANDOM.integers(0, 256, size, dtype=np.uint8)
    found = set()
    try:
        for way in ((True, True), (True, False), (False, False)):
            _checked._use_instruction(*way)
            found |= {crc32c(data[cut:], crc32c(data[:cut])) for cut in (0, 1, size // 3, size)}
    finally:
        _checked._use_instruction(True)
    assert len(found) == 1


def test_pieces_count_as_one_record():
    keys, values = RANDOM.integers(0, 256, (2, 5, 100), dtype=np.uint8)
    found = checksums([keys, values[:, ::1]], [4, 0])
    assert found.tolist() == [crc32c(keys[row].tobytes() + values[row].tobytes()) for row in (4, 0)]


@pytest.fixture
def file(tmp_path):
    """Three records of 50 bytes behind 10 others: their descriptor, offsets, bytes and checksums."""
    records = RANDOM.integers(0, 256, (3, 50), dtype=np.uint8)
    path = tmp_path / "records"
    path.write_bytes(bytes(10) + records.tobytes())
    fd = os.open(path, os.O_RDWR)
    yield fd, 10 + 50 * np.arange(3), records, checksums([records], np.arange(3))
    os.close(fd)


def test_reads_into_pieces(file):
    fd, offsets, records, crcs = file
    first, second = np.zeros((4, 20), np.uint8), np.zeros((9, 64), np.uint8)[:, 3:33]
    assert read_checked(fd, offsets, [first, second], [3, 0, 1], crcs) == 3
    assert (first[[3, 0, 1]] == records[:, :20]).all() and (second[[3, 0, 1]] == records[:, 20:]).all()
    assert not first[2].any() and not second[2].any()


def test_stops_at_the_first_wrong_record(file):
    fd, offsets, records, crcs = file
    os.pwrite(fd, bytes([records[1, 7] ^ 4]), 10 + 50 + 7)
    assert read_checked(fd, offsets, [np.zeros_like(records)], np.arange(3), crcs) == 1


def test_a_short_file_is_not_right(file):
    fd, offsets, records, crcs = file
    os.ftruncate(fd, 10 + 149)
    assert read_checked(fd, offsets, [np.zeros_like(records)], np.arange(3), crcs) == 2
    assert read_checked(fd, offsets + 1000, [np.zeros_like(records)], np.arange(3), crcs) == 0


def test_offsets_beyond_4_gib(tmp_path):  # T10: sizes are 64-bit
    record = np.arange(100, dtype=np.uint8)[None]
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.seek(5 << 30)
        file.write(record.tobytes())
    with path.open("rb") as file:
        into = np.zeros_like(record)
        assert read_checked(file.fileno(), [5 << 30], [into], [0], checksums([record], [0])) == 1
        assert (into == record).all()


@pytest.mark.parametrize("width", [1, 700, 70_000])  # many layers in a call, or few
def test_blocks_are_written_and_read_whole(tmp_path, width):
    """Records of 300 layers of two pieces, in rows of a pool, padded; one that is wrong ends the reading."""
    sizes = [width, 3] * 300 if width < 1000 else [width, 3] * 7
    pool = [RANDOM.integers(0, 256, (4, size), dtype=np.uint8) for size in sizes]
    layers = list(zip(pool[::2], pool[1::2], strict=True))
    step = sum(sizes) + 5
    with (tmp_path / "blocks").open("w+b") as file:
        crcs = write_checked(file.fileno(), [10, 10 + step], layers, [3, 1], pad=5)
        assert file.read() == bytes(10) + b"".join(
            b"".join(piece[row].tobytes() for piece in pool) + bytes(5) for row in (3, 1)
        )
        assert crcs[0, 5] == crc32c(layers[5][0][3].tobytes() + layers[5][1][3].tobytes())
        into = [(np.zeros_like(a), np.zeros_like(b)) for a, b in layers]
        assert read_blocks(file.fileno(), [10, 10 + step], into, [0, 2], crcs) == 2
        found = [piece for pieces in into for piece in pieces]
        assert all((ours[[0, 2]] == theirs[[3, 1]]).all() for ours, theirs in zip(found, pool, strict=True))
        crcs[1, -1] ^= 1
        assert read_blocks(file.fileno(), [10, 10 + step], into, [0, 2], crcs) == 1
        file.truncate(10 + step - 6)
        assert read_blocks(file.fileno(), [10, 10 + step], into, [0, 2], crcs) == 0


def test_no_layers(file):
    assert read_blocks(file[0], [0, 0], [], [1, 2], np.empty((2, 0))) == 2
    assert write_checked(file[0], [0, 0], [], [1, 2]).shape == (2, 0)


def test_bad_blocks(file):
    fd, offsets, records, crcs = file
    with pytest.raises(ValueError, match="checksums of 1 layers; arrays of 2 layers"):
        read_blocks(fd, offsets, [[records], [records]], [0, 1, 2], crcs[:, None])
    with pytest.raises(ValueError, match="2 offsets and 3 rows"):
        write_checked(fd, offsets[:2], [[records]], [0, 1, 2])
    with pytest.raises(ValueError, match="pad is 4097"):
        write_checked(fd, offsets, [[records]], [0, 1, 2], pad=4097)
    with pytest.raises(ValueError, match="row 3 is none"):
        write_checked(fd, offsets, [[records]], [0, 1, 3])
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_checked(-1, offsets, [[records]], [0, 1, 2])


def test_bad_arguments(file):
    fd, offsets, records, crcs = file
    into = np.zeros_like(records)
    with pytest.raises(ValueError, match="row 3 is none of the 3"):
        read_checked(fd, offsets, [into], [0, 1, 3], crcs)
    with pytest.raises(ValueError, match="2 offsets, 3 rows and 3 checksums"):
        read_checked(fd, offsets[:2], [into], [0, 1, 2], crcs)
    into.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        read_checked(fd, offsets, [into], [0, 1, 2], crcs)
    with pytest.raises(ValueError, match="compact"):
        checksums([records[:, ::2]], [0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_checked(-1, offsets, [np.zeros_like(records)], [0, 1, 2], crcs)


def test_copies_records_in_pieces():
    source = RANDOM.integers(0, 256, (5, 30), dtype=np.uint8)
    first, second = np.zeros((9, 64), np.uint8), np.zeros((9, 10), np.uint8)
    copy_records([source[:, :20], source[:, 20:]], [4, 0], [first[:, 7:27], second], [2, 8])
    assert (first[[2, 8], 7:27] == source[[4, 0], :20]).all() and (second[[2, 8]] == source[[4, 0], 20:]).all()
    assert first.any(axis=1).sum() == 2 == second.any(axis=1).sum() and not first[:, 27:].any()


def test_copies_that_do_not_fit_are_refused():
    source, target = np.zeros((5, 30), np.uint8), np.zeros((5, 31), np.uint8)
    for arguments, message in [
        (([source], [0], [target], [0]), "piece 0 has 30 bytes, and 31 where"),
        (([source], [5], [source], [0]), "row 5 is none of the 5"),
        (([source], [0, 1], [source], [0]), "1 pieces of 2 records to 1 pieces of 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            copy_records(*arguments)
