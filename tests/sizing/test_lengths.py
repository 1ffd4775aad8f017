"""Lengths of a workload from text and .npz, also from files that are not what they say."""

import io
import zipfile

import numpy as np
import pytest

from pagedcache.sizing import lengths as module
from pagedcache.sizing import read_lengths


def test_lengths_that_come_with_the_package():
    lengths = read_lengths()
    assert (lengths.shape, lengths.dtype) == ((256, 2), np.int64)
    assert lengths.min() >= 4 and lengths.sum(axis=1).max() <= 2048


def test_text(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("# mine\n\nprompt, output\n12,5\r\n  7 , 1048576 \n")
    assert read_lengths(path).tolist() == [[12, 5], [7, 1048576]]


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64, ">i4"])
def test_npz(tmp_path, dtype):
    np.savez_compressed(tmp_path / "a.npz", prompt=np.array([3, 4], dtype), output=np.array([5, 6], dtype))
    assert read_lengths(str(tmp_path / "a.npz")).tolist() == [[3, 5], [4, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lengths"),
        ("prompt,output\n", "has no lengths"),
        ("1,2\nprompt,output\n", "line 2 of a.csv is 'prompt,output'"),
        ("1,2\n3\n", "line 2 of a.csv is '3'"),
        ("1,2,3", "line 1"),
        ("1,-2", "line 1"),
        ("0,2", "numbers from 1 to 1048576"),
        ("1,1048577", "numbers from 1 to 1048576"),
        ("1,\N{SUPERSCRIPT TWO}", "line 1"),
        ("1," + "9" * 100_000, "line 1"),
    ],
)
def test_text_that_is_refused(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_lengths(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe1,2")
    with pytest.raises(ValueError, match=r"a\.csv is not text"):
        read_lengths(path)


def test_files_that_are_too_large(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("1,2\n1,2\n1,2\n")
    monkeypatch.setattr(module, "MAX_PAIRS", 2)
    with pytest.raises(ValueError, match="more than 2 pairs"):
        read_lengths(path)
    monkeypatch.setattr(module, "MAX_NBYTES", 5)
    with pytest.raises(ValueError, match="larger than"):
        read_lengths(path)


def npz(path, **columns):
    """Write an .npz of raw bytes by name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in columns.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array, shape=None):
    """An array as bytes, with another shape in its header."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(file, header | {"shape": shape or array.shape})
    return file.getvalue() + array.tobytes()


GOOD = npy(np.array([3, 4]))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (npy(np.array([3, 4]), (1 << 40,)), "n from 1 to 1048576"),
        (npy(np.array([3, 4]), (1 << 20,)), "ends after 16 of"),
        (npy(np.array([[3, 4]])), r"\(1, 2\)"),
        (npy(np.array([3.0, 4.0])), "float64"),
        (npy(np.array([3, 0])), "has 0 to 3; it must be from 1"),
        (npy(np.array([3, 2**63], np.uint64)), "it must be from 1"),
        (npy(np.array([3, 4, 5])), "2 prompts and 3 outputs"),
        (b"", "a.npz is no .npz with arrays .*magic string"),
        (b"\x93NUMPY\x02\x00" + bytes(20), "format version"),
    ],
)
def test_npz_that_is_refused(tmp_path, output, message):
    with pytest.raises(ValueError, match=message):
        read_lengths(npz(tmp_path / "a.npz", prompt=GOOD, output=output))


def test_npz_without_the_arrays(tmp_path):
    with pytest.raises(ValueError, match=r"no \.npz with arrays"):
        read_lengths(npz(tmp_path / "a.npz", prompt=GOOD))
    (tmp_path / "b.npz").write_bytes(b"1,2\n")
    with pytest.raises(ValueError, match=r"b.npz is no .npz"):
        read_lengths(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError):
        read_lengths(tmp_path / "c.npz")


def test_damaged_npz(tmp_path):
    path = npz(tmp_path / "a.npz", prompt=GOOD, output=npy(np.arange(1, 600)))
    data = bytearray(path.read_bytes())
    refused = 0
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            read_lengths(path)
        except ValueError:  # and nothing else
            refused += 1
    assert refused > len(data) // 7 // 2
