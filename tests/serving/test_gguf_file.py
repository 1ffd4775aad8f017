"""GGUF files: good ones equal the gguf library's reading, and no bad one does harm (contract 19)."""

import os
import struct
import tracemalloc

import numpy as np
import pytest
import tiny_llama

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models import gguf_file
from pagedcache.serving.models.gguf_file import GGUFFile

gguf = pytest.importorskip("gguf")


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def header(*, tensors=0, values=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def value(key, kind, data):
    return text(key) + struct.pack("<I", kind) + data


def array(kind, count, data):
    return struct.pack("<IQ", kind, count) + data


def tensor(name="t", shape=(4,), dtype=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, dtype, offset)


@pytest.fixture
def refuse(tmp_path):
    """Read bytes as a GGUF file and expect a refusal."""

    def check(data, match):
        path = tmp_path / "bad.gguf"
        path.write_bytes(data)
        with pytest.raises(UnsupportedModel, match=match):
            GGUFFile(path)

    return check


def test_metadata_and_tensors_equal_the_gguf_library(tiny_path):
    reader = gguf.GGUFReader(tiny_path)
    with GGUFFile(tiny_path) as file:
        expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert file.metadata == expected
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            assert np.array_equal(file.float32(tensor.name), tensor.data)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [1, 3, 48])
def test_quantised_tensors_equal_the_gguf_library(tmp_path, dtype, rows):
    kind = gguf.GGMLQuantizationType[dtype]
    per_block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    halves = np.random.default_rng(0).standard_normal((rows, 512 // per_block * nbytes // 2)).astype(np.float16)
    raw = halves.view(np.uint8)  # valid numbers wherever a block keeps its scales
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"), GGUFFile(tmp_path / "q.gguf") as file:
        result = file.float32("t")
        expected = gguf.dequantize(raw, kind)
    assert result.dtype == np.float32
    assert np.array_equal(result, expected, equal_nan=True)


def test_all_kinds_of_values(tmp_path):
    path = tmp_path / "values.gguf"
    numbers = [value(f"n{kind}", kind, np.array([3], code).tobytes()) for kind, code in gguf_file._NUMBERS.items()]
    others = [
        value("s", 8, text("ä")),
        value("a", 9, array(5, 2, struct.pack("<2i", -1, 2))),
        value("as", 9, array(8, 2, text("x") + text(""))),
        value("ab", 9, array(7, 2, b"\x01\x00")),
        value("empty", 9, array(6, 0, b"")),
    ]
    path.write_bytes(header(values=len(numbers) + len(others), version=2) + b"".join(numbers + others))
    with GGUFFile(path) as file:
        assert [file.metadata[f"n{kind}"] for kind in gguf_file._NUMBERS] == [3, 3, 3, 3, 3, 3, 3.0, True, 3, 3, 3.0]
        assert {key: file.metadata[key] for key in ("s", "a", "as", "ab", "empty")} == {
            "s": "ä",
            "a": [-1, 2],
            "as": ["x", ""],
            "ab": [True, False],
            "empty": [],
        }


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "the magic needs 4 bytes where 0 are left"),
        (b"GGML" + bytes(20), "not a GGUF file, it begins with b'GGML'"),
        (header(version=1), "version 1; little-endian 2 and 3"),
        (header(version=3 << 24), "version 50331648"),
        (header(tensors=2**63), "9223372036854775808 tensors; at most 65536"),
        (header(tensors=60_000), "60000 tensors cannot lie in the 8 bytes"),
        (header(values=2**40), "metadata values; at most 65536"),
        (header(values=1), "cannot lie in the 0 bytes"),
        (header(values=1) + struct.pack("<Q", 2**60) + bytes(9), "bytes in a metadata key; at most 65535"),
        (header(values=1) + value("k", 8, struct.pack("<Q", 1000)), "1000 bytes in 'k' cannot lie in the 0 bytes"),
        (header(values=1) + value("k", 8, struct.pack("<Q", 2**50)), "at most 16777216"),
        (header(values=1) + value("k", 9, array(5, 2**61, b"1234")), "items in 'k'; at most 16777216"),
        (header(values=1) + value("k", 9, array(12, 100, bytes(100))), "'k' needs 800 bytes where 100 are left"),
        (header(values=1) + value("k", 9, array(8, 100, bytes(300))), "100 items in 'k' cannot lie in the 300"),
        (header(values=1) + value("k", 9, array(9, 1, bytes(40))), "value type 9"),
        (header(values=1) + value("k", 13, bytes(8)), "value type 13"),
        (header(values=1) + value("k", 8, struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
        (header(values=2) + 2 * value("k", 0, b"1"), "'k' occurs twice"),
        (header(values=1) + value("general.alignment", 4, struct.pack("<I", 24)), "alignment is 24; powers of two"),
        (header(values=1) + value("general.alignment", 4, struct.pack("<I", 0)), "alignment is 0"),
        (header(values=1) + value("general.alignment", 8, text("32")), "alignment is '32'"),
        (header(values=1) + value("general.alignment", 9, array(4, 1, bytes(4))), r"alignment is \[0\]"),
        (header(tensors=1) + tensor(shape=()) + bytes(64), "rank 0; 1 to 4"),
        (header(tensors=1) + text("t") + struct.pack("<I", 2**31) + bytes(64), "rank 2147483648"),
        (header(tensors=1) + tensor(shape=(0,)) + bytes(64), "does not consist of blocks"),
        (header(tensors=1) + tensor(shape=(33,), dtype=2) + bytes(64), "does not consist of blocks of 32"),
        (header(tensors=1) + tensor(dtype=999) + bytes(64), "GGML dtype 999"),
        (header(tensors=1) + tensor(shape=(2**62, 2**62, 2**62)) + bytes(64), "beyond the file's"),
        (header(tensors=1) + tensor(shape=(64,)) + bytes(64), "beyond the file's"),
        (header(tensors=1) + tensor(offset=2**63) + bytes(64), "beyond the file's"),
        (header(tensors=1) + tensor(offset=4) + bytes(64), "not aligned"),
        (header(tensors=2) + tensor("a") + tensor("b") + bytes(64), "overlaps"),
        (header(tensors=2) + tensor("a") + tensor("a", offset=32) + bytes(128), "'a' occurs twice"),
    ],
)
def test_damaged_header_is_refused(refuse, data, match):
    refuse(data, match)


def test_every_truncation_is_refused(tiny_path, tmp_path):
    data = tiny_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 9000, 61), *range(len(data) - 4000, len(data), 997)]:
        path.write_bytes(data[:length])
        with pytest.raises(UnsupportedModel):
            GGUFFile(path)


def test_flipped_bytes_never_do_harm(tmp_path):
    """Any single wrong byte in a header gives another file or a refusal, and never a large allocation."""
    data = header(tensors=1, values=3)
    data += (
        value("a", 9, array(8, 2, text("x") + text("yy")))
        + value("b", 4, bytes(4))
        + value("c", 9, array(5, 1, bytes(4)))
    )
    data += tensor(shape=(4, 2))
    data += bytes(-len(data) % 32 + 32)
    path = tmp_path / "flipped.gguf"
    tracemalloc.start()
    for place in range(len(data)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            try:
                with GGUFFile(path) as file:
                    for name in file.tensors:
                        file.float32(name)
            except UnsupportedModel:
                pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_dtype_that_cannot_be_dequantised_is_refused(tmp_path):
    path = tmp_path / "i32.gguf"
    data = header(tensors=1) + tensor(dtype=int(gguf.GGMLQuantizationType.I32))
    path.write_bytes(data + bytes(-len(data) % 32 + 16))
    with GGUFFile(path) as file, pytest.raises(UnsupportedModel, match=r"'t': .*I32"):
        file.float32("t")


def test_file_that_shrinks_is_refused(tmp_path):
    path = tiny_llama.write(tmp_path / "shrinks.gguf")
    with GGUFFile(path) as file:
        os.truncate(path, path.stat().st_size - 4096)
        with pytest.raises(UnsupportedModel, match="ends after"):
            file.float32(list(file.tensors)[-1])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsupportedModel, match="not a regular file"):
        GGUFFile(tmp_path / "pipe")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises((UnsupportedModel, IsADirectoryError, PermissionError)):
        GGUFFile(tmp_path)
