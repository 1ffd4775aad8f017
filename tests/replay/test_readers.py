"""Readers of traces: every format, and files that lie."""

import gzip
import io
import json
import zipfile
from importlib import resources

import numpy as np
import pytest

from pagedcache.replay import SHIPPED, read_trace, shipped_trace
from pagedcache.replay import readers as module

MOONCAKE = {"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [4, 9, 2]}
QWEN = {
    "chat_id": 7,
    "parent_chat_id": -1,
    "timestamp": 1.5,
    "input_length": 33,
    "output_length": 2,
    "type": "text",
    "turn": 1,
    "hash_ids": [11, 12, 13],
}
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109"""


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path; records become JSON lines."""

    def write(content, name="trace"):
        if isinstance(content, list):
            content = "\n".join(json.dumps(record) for record in content)
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def with_(record, **changes):
    return {name: value for name, value in {**record, **changes}.items() if value is not ...}


def test_mooncake(file):
    trace = read_trace(file([MOONCAKE, with_(MOONCAKE, timestamp=4500, hash_ids=[4, 9, 5])]))
    assert trace.prompts.tolist() == [1030, 1030]
    assert trace.outputs.tolist() == [5, 5]
    assert trace.arrivals.tolist() == [0.0, 1.5]
    assert [ids.tolist() for ids in trace.blocks] == [[0, 1, 2], [0, 1, 3]]
    assert (trace.block_size, trace.num_blocks, trace.name) == (512, 4, "trace")


def test_qwen_has_seconds_and_blocks_of_16(file):
    trace = read_trace(file([QWEN, with_(QWEN, timestamp=4)]))
    assert trace.arrivals.tolist() == [0.0, 2.5]
    assert (trace.block_size, trace.num_blocks) == (16, 3)


def test_a_number_stands_for_the_whole_prefix(file):
    """Two traces of equal content, one of them with ids of blocks alone, mean the same."""
    first = with_(MOONCAKE, hash_ids=[1, 2, 2])
    other = with_(MOONCAKE, hash_ids=[3, 2, 2])
    trace = read_trace(file([first, other, first]))
    assert [ids.tolist() for ids in trace.blocks] == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_ids_may_be_text_or_huge(file):
    trace = read_trace(file([with_(MOONCAKE, hash_ids=["a", 2**70]), with_(MOONCAKE, hash_ids=["a", -5])]))
    assert [ids.tolist() for ids in trace.blocks] == [[0, 1], [0, 2]]


def test_azure(file):
    trace = read_trace(file(AZURE))
    assert trace.prompts.tolist() == [374, 396]
    assert trace.outputs.tolist() == [44, 109]
    assert trace.arrivals == pytest.approx([0.0, 4.314579], abs=1e-5)
    assert trace.blocks is trace.block_size is None


@pytest.mark.parametrize(
    "text",
    [
        "3,4\n5,6",
        "3 4\n\n5\t6\n",
        "prompt,output\n3,4\n5,6",
        "Output,Prompt\n4,3\n6,5",
        "\ufeffprompt output\n3 4\n5 6",
    ],
)
def test_plain_lengths(file, text):
    trace = read_trace(file(text))
    assert (trace.prompts.tolist(), trace.outputs.tolist(), trace.arrivals) == ([3, 5], [4, 6], None)


def test_lengths_of_a_simulator(file):
    trace = read_trace(file("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"))
    assert (trace.prompts.tolist(), trace.outputs.tolist()) == ([3772], [54])


def test_lengths_as_arrays(file):
    buffer = io.BytesIO()
    np.savez(buffer, prompt=np.array([3, 5], np.uint16), output=np.array([4, 6]))
    trace = read_trace(file(buffer.getvalue()))
    assert (trace.prompts.tolist(), trace.outputs.tolist()) == ([3, 5], [4, 6])


def test_gzip_is_told_by_its_bytes_not_its_name(file):
    plain, packed = file(AZURE, "plain.gz"), file(gzip.compress(AZURE.encode()), "packed.csv")
    assert read_trace(plain).prompts.tolist() == read_trace(packed).prompts.tolist()


def test_select(file):
    trace = read_trace(file("3,0\n4,5\n60,50\n7,8"))
    assert trace.select(9, max_length=100).prompts.tolist() == [4, 7]
    assert trace.select(1).prompts.tolist() == [4]
    assert trace.first(2).prompts.tolist() == [3, 4]
    assert trace.first(9).prompts.tolist() == [3, 4, 60, 7]
    drawn = trace.select(50, max_length=100, seed=3)
    assert sorted(set(drawn.prompts.tolist())) == [4, 7] and len(drawn) == 50
    assert drawn.prompts.tolist() == trace.select(50, max_length=100, seed=3).prompts.tolist()
    with pytest.raises(ValueError, match="none of its 4 requests has an answer and at most 5 tokens"):
        trace.select(3, max_length=5)


def test_parts_of_a_trace_keep_times_and_blocks(file):
    trace = read_trace(file([with_(MOONCAKE, output_length=0), with_(MOONCAKE, timestamp=9000, hash_ids=[4])]))
    part = trace.select(1)
    assert (part.arrivals.tolist(), [ids.tolist() for ids in part.blocks], part.block_size) == ([6.0], [[0]], 512)
    assert (trace.num_accesses, part.num_accesses) == (4, 1)


@pytest.mark.parametrize("name", SHIPPED)
def test_traces_of_the_package(name):
    trace = shipped_trace(name)
    assert trace.name == name
    assert len(trace) == {"sharegpt": 14906, "mooncake-conversation": 1500, "mooncake-synthetic": 800}.get(name, 3000)
    assert (trace.blocks is None) == (not name.startswith("mooncake"))


def test_traces_of_the_package_name_their_licences():
    folder = resources.files("pagedcache.replay") / "data"
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    told = files.pop("README.md").decode()
    assert set(files) == set(SHIPPED.values())
    assert sum(map(len, files.values())) < 400_000
    for name in files:
        (row,) = [line for line in told.splitlines() if f"`{name}`" in line]
        assert len(row.split("|")) == 6


def test_unknown_trace_of_the_package():
    with pytest.raises(ValueError, match="name is 'x'; it must be one of 'sharegpt'"):
        shipped_trace("x")


# -- files that lie -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_length": -5}, "line 2: the prompt has -5 tokens; it must be an integer, 1 to 1073741824"),
        ({"input_length": 0}, "the prompt has 0 tokens"),
        ({"input_length": 10**19}, "the prompt has 10000000000000000000 tokens"),
        ({"input_length": 1030.0}, "the prompt has 1030.0 tokens"),
        ({"input_length": True}, "the prompt has True tokens"),
        ({"output_length": "5"}, "the output has '5' tokens"),
        ({"output_length": None}, "the output has None tokens"),
        ({"timestamp": "soon"}, "the timestamp is 'soon'"),
        ({"timestamp": float("nan")}, "the timestamp is nan"),
        ({"timestamp": 10**400}, "the timestamp is 1000"),
        ({"timestamp": float("-inf")}, "the timestamp is -inf"),
        ({"hash_ids": 7}, "hash_ids is 7; it must be a list"),
        ({"hash_ids": [1, 2, 3, 4]}, "4 hash_ids for 1030 tokens; blocks of 512 are fewer"),
        ({"hash_ids": [1, None]}, r"hash_ids\[1\] is None"),
        ({"hash_ids": [1.5]}, r"hash_ids\[0\] is 1.5"),
        ({"hash_ids": [[1]]}, r"hash_ids\[0\] is \[1\]"),
        ({"hash_ids": ["x" * 129]}, r"hash_ids\[0\] is 'x+\.\.\.; it must be an integer or a short text"),
        ({"hash_ids": ...}, "there is no hash_ids"),
        ({"timestamp": ...}, "there is no timestamp"),
    ],
)
def test_bad_json_records_are_named(file, changes, message):
    with pytest.raises(ValueError, match=f"trace, line 2: .*{message.removeprefix('line 2: ')}"):
        read_trace(file([MOONCAKE, with_(MOONCAKE, **changes)]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ('{"a": 1', "line 1: not JSON"),
        ('{"a":' * 100_000, "line 1: not JSON"),
        ("{" + '"n": ' + "9" * 5000 + "}", "line 1: not JSON"),
        (json.dumps(MOONCAKE) + "\n[1]", r"line 2: \[1\] is not a JSON object"),
        ("a,b\n1,2", "line 1: columns 'a,b'; one of contexttokens"),
        ("prompt,x\n1,2", "line 1: columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "there are no requests"),
        ("prompt,output\n1", "line 2: 1 columns, '1'; 2 are needed"),
        ("1,2\n3,4,5", "line 2: 3 columns"),
        ("1,2\n3,x", "line 2: the output has 'x' tokens"),
        ("1,2\n3,-4", "line 2: the output has -4 tokens"),
        ("1,2\n3," + "9" * 30, "line 2: the output has '9999"),
        ("1,2\n1.5,3", "line 2: the prompt has '1.5' tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2", "line 2: the timestamp is 'never'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1e999,1,2", "line 2: the timestamp is inf"),
    ],
)
def test_bad_text_is_named(file, text, message):
    with pytest.raises(ValueError, match=f"trace.*{message}"):
        read_trace(file(text))


def test_not_text(file):
    with pytest.raises(ValueError, match=r"line 2: not UTF-8 text: .* at byte 0"):
        read_trace(file(b"1,2\n\xff\xfe,3\n"))


def test_gzip_bomb(file):
    bomb = gzip.compress(b"1,2\n" * 1_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, match="longer than 100000 bytes; raise max_bytes"):
        read_trace(file(bomb), max_bytes=100_000)


def test_a_line_without_end(file, monkeypatch):
    monkeypatch.setattr("pagedcache.replay._lines.MAX_LINE", 1000)
    with pytest.raises(ValueError, match="line 1: the line is longer than 1000 bytes"):
        read_trace(file("1" * 5000))


def test_damaged_gzip(file):
    whole = gzip.compress(AZURE.encode())
    for damaged in (whole[:-12], whole[:-8] + bytes([whole[-8] ^ 255]) + whole[-7:], whole[:3]):
        with pytest.raises(ValueError, match="the gzip data is damaged"):
            read_trace(file(damaged))


def test_too_many_blocks(file, monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCKS", 5)
    with pytest.raises(ValueError, match="line 2: more than 5 hash_ids so far"):
        read_trace(file([MOONCAKE, MOONCAKE]))


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz(prompt=np.array([1])), "no .npz with arrays prompt and output"),
        (npz(prompt=np.array([1, 2]), output=np.array([1])), r"array output is int64 \(1,\)"),
        (npz(prompt=np.array([1.0]), output=np.array([1])), "array prompt is float64"),
        (npz(prompt=np.array([[1]]), output=np.array([[1]])), r"array prompt is int64 \(1, 1\)"),
        (npz(prompt=np.array([1, -2]), output=np.array([1, 1])), "line 2: the prompt has -2 tokens"),
        (npz(prompt=np.array([{}], object), output=np.array([1])), "no .npz .* allow_pickle"),
        (npz(prompt=np.zeros(10**6, np.int64), output=np.array([1])), "its arrays take 8000.* bytes; at most 1000000"),
        (b"PK\x03\x04 and nothing else", "no .npz"),
    ],
)
def test_bad_arrays(file, content, message):
    with pytest.raises(ValueError, match=f"trace.*{message}"):
        read_trace(file(content), max_bytes=1_000_000)


def test_array_that_claims_more_than_the_archive_has(file):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("prompt", "output"):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (2**40,)})
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(ValueError, match=r"no .npz with arrays prompt and output"):
        read_trace(file(buffer.getvalue()))


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        read_trace(tmp_path / "nowhere")
