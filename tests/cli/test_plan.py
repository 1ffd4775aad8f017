"""``pagedcache plan``: the shape from three places, what a budget holds, JSON."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache import CacheSpec, KVCache

SHAPE = ("--layers", 2, "--kv-heads", 1, "--head-dim", 8)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32}
    path.write_text(json.dumps(sizes | {"sliding_window": 100, "max_position_embeddings": 500}))
    return path


def test_config_json(command, config):
    status, out, err = command("plan", "--model", config, "--length", 20, "--length", 33, "--memory", "65 KiB")
    assert (status, err) == (0, "")
    assert out.splitlines()[2:] == [
        "31 usable blocks in 64.00 KiB: 496 tokens",
        "15 sequences of 20 tokens, 2 blocks each, if none are shared",
        "10 sequences of 33 tokens, 3 blocks each, if none are shared",
        "1 sequence in a contiguous cache that reserves 500 tokens for each",
        "note: some layers see a window of 100 tokens and could hold less; they are computed as full",
    ]


def test_json_is_what_the_cache_then_has(command, config):
    out = command("plan", "--model", config, "--memory", "65 KiB", "--max-length", 70, "--dtype", "int8", "--json")[1]
    plan = json.loads(out)
    spec = CacheSpec(plan["layers"], plan["kv_heads"], plan["head_dim"], dtype="int8", block_size=plan["block_size"])
    with KVCache(spec, memory=plan["memory"]) as cache:
        views = [
            array for layer in (0, 1) for kind in ("view", "scales") for array in getattr(cache.storage, kind)(layer)
        ]
        assert plan["num_blocks"] == cache.num_blocks
        assert plan["pool_nbytes"] == sum(array.nbytes for array in views)
        assert plan["bytes_per_block"] * (cache.num_blocks + 1) == plan["pool_nbytes"]
        del views
    assert plan["sequences"] == [{"length": 2048, "blocks": 128, "sequences": plan["num_blocks"] // 128}]
    assert plan["contiguous"] == {"max_length": 70, "sequences": (65 << 10) // (70 * plan["bytes_per_token"])}
    assert len(plan["notes"]) == 1


def test_flags_reserve_the_largest_length(command):
    out = command("plan", *SHAPE, "--length", 30, "--length", 400)[1]
    assert "in a contiguous cache that reserves 400 tokens for each" in out


def test_a_config_that_is_refused(command, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"num_attention_heads": "many"}')
    status, out, err = command("plan", "--model", path)
    assert (status, out) == (1, "")
    assert err == "pagedcache: num_attention_heads is 'many'; one number from 1 to 16777216 is needed\n"
