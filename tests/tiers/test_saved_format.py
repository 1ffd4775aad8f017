"""A second reader of saved files, written from docs/saved_files.md alone."""

import dataclasses
import json
import struct

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, LayerGroup, Namespace, content
from pagedcache.digests import root_digest

SECRET = b"at least 16 bytes"


def crc32c(data):
    """Castagnoli's, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def parse(data):
    """Header, records [blocks, layers, bytes], tokens, tables and manifest; every checksum compared."""
    magic, version, zero, blocks, tables_size, text_size, *crcs = struct.unpack("<16sIIQQQIIII", data[-64:])
    assert (magic, version, zero) == (b"pagedcache saved", 1, 0) and crc32c(data[-64:-4]) == crcs[3]
    assert data.startswith(b"pagedcache blocks\n") and crc32c(data[:4096]) == crcs[0]
    size, crc = struct.unpack("<II", data[18:26])
    header = json.loads(data[26 : 26 + size])
    assert crc32c(data[26 : 26 + size]) == crc and not any(data[26 + size : 4096])
    tables, text = data[-64 - text_size - tables_size : -64 - text_size], data[-64 - text_size : -64]
    assert crc32c(tables) == crcs[1] and crc32c(text) == crcs[2]
    records = np.frombuffer(data[4096 : -64 - text_size - tables_size], np.uint8).reshape(blocks, header["layers"], -1)
    numbers = np.frombuffer(tables, "<i4")
    sums, numbers = numbers[: blocks * header["layers"]].view(np.uint32), numbers[blocks * header["layers"] :]
    assert sums.tolist() == [crc32c(record.tobytes()) for layers in records for record in layers]
    tokens, numbers = numbers[: blocks * header["block_size"]], numbers[blocks * header["block_size"] :]
    return header, records, tokens.reshape(blocks, -1), numbers, json.loads(text)


@pytest.fixture
def spec():
    groups = [LayerGroup(2), LayerGroup(1, "sliding_window", window=4, sink_tokens=1)]
    return CacheSpec(
        3, 2, 4, v_head_dim=2, dtype="int8", block_size=4, layout="HND", groups=groups, max_step_tokens=8,
        fingerprint=b"\x01\xff",
    )  # fmt: skip


def test_a_second_reader_agrees(tmp_path, spec):
    cache = KVCache(spec, num_blocks=32)
    namespace = Namespace("ours", secret=SECRET)
    [sid] = cache.admit([list(range(14))], namespace=namespace, keys=[[content("cat", 1, 3)]]).ids.tolist()
    for first in (0, 8):
        tokens = list(range(first, min(first + 8, 14)))
        step = cache.extend([sid], [len(tokens)])
        for layer in range(3):
            k = np.random.default_rng(layer).standard_normal((len(tokens), 2, 4)).astype(np.float32)
            cache.attend(layer, k, k, np.ascontiguousarray(k[:, :, :2]), step)
        cache.commit(step, tokens)
    assert cache.save(tmp_path / "saved.kv", [sid]) == 4 + 2 + 1  # a window of 4 at 14: blocks 2 and 3, and the sink
    header, records, tokens, tables, told = parse((tmp_path / "saved.kv").read_bytes())
    assert header == {
        "fingerprint": "01ff", "dtype": "int8", "layout": "NHD", "block_size": 4, "first_layer": 0, "layers": 2,
        "first_head": 0, "kv_heads": 2, "head_dim": 4, "v_head_dim": 2, "version": 1,
    }  # fmt: skip
    assert told == {
        "groups": [[2, "full", None, 0], [1, "sliding_window", 4, 1]],
        "max_step_tokens": 8,
        "namespaces": [[b"ours".hex(), root_digest(4, b"\x01\xff", SECRET).hex()]],
        "paths": [
            {
                "sequence": True, "entries": 4, "position": 14, "pad": 0, "known": True, "priority": 0, "namespace": 0,
                "keys": [["image", b"cat".hex(), 1, 3]],
            }
        ],
    }  # fmt: skip
    tables = tables.reshape(4, 2)
    assert (tables[:, 0] >= 0).all() and (tables[:, 1] >= 0).tolist() == [True, False, True, True]
    assert tokens[tables[:, 0]].ravel().tolist() == [*range(14), -1, -1]
    (k, v), (k_scales, v_scales) = cache.storage.view(1), cache.storage.scales(1)
    for entry, block in enumerate(cache.sequence(sid).block_table.tolist()[:4]):
        used = min(4, 14 - 4 * entry)
        expected = b""
        for kind in (k, v, k_scales, v_scales):
            nhd = np.ascontiguousarray(kind[block].swapaxes(0, 1)).copy()
            nhd[used:] = 0
            expected += nhd.tobytes()
        assert records[tables[entry, 0], 1].tobytes() == expected
    assert not records[tables[0, 1], 1].any()  # the window's group has one layer


def test_prompts_of_the_prefix_cache(tmp_path, spec):
    spec = dataclasses.replace(spec, groups=[LayerGroup(3)])
    cache = KVCache(spec, num_blocks=32)
    for prompt in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 9, 9, 9, 9]):
        admission = cache.admit([prompt])
        some = prompt[int(admission.cached[0]) :]
        cache.commit(cache.extend(admission.ids, len(some)), some)
    cache.save(tmp_path / "saved.kv")
    _, records, tokens, tables, told = parse((tmp_path / "saved.kv").read_bytes())
    assert records.shape[:2] == (3, 3) and sorted(tables.tolist()) == [0, 0, 1, 2]
    assert [(path["sequence"], path["entries"], path["position"]) for path in told["paths"]] == [(False, 2, 8)] * 2
    assert sorted(tokens[tables].reshape(2, 8).tolist()) == [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9]]
