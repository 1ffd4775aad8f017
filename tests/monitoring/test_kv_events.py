"""Events as bytes: what consumers of vLLM's schema decode. They know nothing of this library."""

import sys

import pytest

msgspec = pytest.importorskip("msgspec")

from kv_follower import AllBlocksCleared, BlockRemoved, BlockStored, Workload, decoded  # noqa: E402

from pagedcache import Namespace, adapter, content, salt  # noqa: E402
from pagedcache.digests import prompt_digests  # noqa: E402
from pagedcache.monitoring import encode_events  # noqa: E402


def hashes_of(prompt, **options):
    """The schema's hashes: the last 8 bytes of each digest."""
    return [int.from_bytes(digest[24:], "big") for digest in prompt_digests(prompt, 4, **options)]


@pytest.fixture
def work():
    work = Workload(0)
    yield work
    work.cache.check()


def told(work, **options):
    """Events of the batch that a consumer decodes."""
    payload = encode_events(work.cache.events(), 4, time=7.5, **options)
    return [] if payload is None else decoded(payload).events


def test_a_chain_is_told_as_one_event(work):
    work.store(list(range(13)))
    work.store([*range(8), 50, 51, 52, 53, 54])
    a, b = hashes_of(range(12)), hashes_of([*range(8), 50, 51, 52, 53])
    assert told(work) == [
        BlockStored(a, None, list(range(12)), 4, None, None, None),
        BlockStored(b[2:], a[1], [50, 51, 52, 53], 4, None, None, None),
    ]


def test_removed_blocks_are_told_together_and_in_order(work):
    work.cache.release([work.store(list(range(13)))])
    work.cache.events()
    work.cache.evict(2)
    first, second, third = hashes_of(range(12))
    assert told(work, medium="GPU") == [BlockRemoved([third, second], "GPU")]
    work.store(list(range(8)))
    work.cache.reset()
    assert told(work) == [
        BlockStored([second], first, [4, 5, 6, 7], 4, None, None, None),
        BlockRemoved([second, first], None),
    ]


def test_the_bytes_of_a_batch():
    """As vLLM 0.32 encodes the same; and its field order before 0.24."""
    work = Workload(0)
    work.store([1, 2, 3, 4, 5])
    events = work.cache.events(anew=True)
    number = hashes_of([1, 2, 3, 4])[0].to_bytes(8, "big")
    stored = [b"\xacblock_hashes\x91\xcf" + number, b"\xb1parent_block_hash\xc0", b"\xa9token_ids\x94\x01\x02\x03\x04"]
    stored += [b"\xaablock_size\x04", b"\xa7lora_id\xc0", b"\xa6medium\xc0", b"\xa9lora_name\xc0"]
    batch = b"\x93\xcb" + bytes.fromhex("3ff8000000000000") + b"\x92\x81\xa4type\xb0AllBlocksCleared"
    batch += b"\x88\xa4type\xabBlockStored" + b"".join(stored) + b"\x03"
    assert encode_events(events, 4, time=1.5, rank=3) == batch
    array = b"\x98\xabBlockStored\x91\xcf" + number + b"\xc0\x94\x01\x02\x03\x04\x04\xc0\xa3GPU\xc0\x00"
    assert encode_events(events, 4, time=1.5, form="array", medium="GPU").endswith(array)


def test_another_decoder_reads_the_same():
    msgpack = pytest.importorskip("msgpack")
    work = Workload(0)
    work.cache.release([work.store(list(range(9)))])
    work.cache.evict(1)
    events = work.cache.events(anew=True)
    first, _ = hashes_of(range(8))
    payload = encode_events(events, 4, time=2.0, rank=1, form="array")
    stored = ["BlockStored", [first], None, [0, 1, 2, 3], 4, None, None, None]
    assert msgpack.unpackb(payload) == [2.0, [["AllBlocksCleared"], stored], 1]


def test_whole_digests_where_they_are_asked_for(work):
    work.store(list(range(9)))
    [event] = told(work, hashes="bytes")
    assert event.block_hashes == prompt_digests(range(8), 4)


def test_tokens_leave_only_if_the_cache_records_them():
    work = Workload(0, events="digests")
    work.store(list(range(9)))
    assert told(work) == [BlockStored(hashes_of(range(8)), None, [], 4, None, None, None)]


def test_nothing_to_tell_is_no_batch(work):
    assert encode_events(work.cache.events(), 4, time=0.0) is None
    work.store([1] * 9, namespace="b")
    assert encode_events(work.cache.events(), 4, time=0.0, namespace="a") is None


@pytest.mark.parametrize("ours", [None, "a", Namespace("b", secret=b"0123456789abcdef")], ids=["none", "a", "b"])
def test_no_event_crosses_a_namespace(work, ours):
    """Contract 17: not a hash, not a token, stored or removed."""
    for name, token in ((None, 1), ("a", 2), (Namespace("b", secret=b"0123456789abcdef"), 3)):
        work.cache.release([work.store([token] * 9, namespace=name)])
    token = [None, "a"].index(ours) + 1 if ours in (None, "a") else 3
    work.cache.reset()
    stored, removed = told(work, namespace=ours)
    assert stored.token_ids == [token] * 8
    assert stored.block_hashes == hashes_of([token] * 8, namespace=ours) == removed.block_hashes[::-1]


def test_everybody_hears_cleared(work):
    work.store([1] * 9, namespace="a")
    payload = encode_events(work.cache.events(anew=True), 4, time=0.0, namespace="b")
    assert decoded(payload).events == [AllBlocksCleared()]


@pytest.mark.parametrize(
    "key", [salt("s", 5), content("cat", 4, 6), adapter("x", start=4)], ids=["salt", "image", "late"]
)
def test_what_tokens_do_not_tell_is_left_out(work, key):
    """A consumer that hashes token ids would route plain prompts to blocks that they cannot use."""
    work.cache.release([work.store(list(range(13)), keys=[[key]])])
    work.cache.reset()
    first = hashes_of(range(4))
    assert told(work) == [
        BlockStored(first, None, [0, 1, 2, 3], 4, None, None, None),
        BlockRemoved(first, None),
    ]


def test_an_adapter_is_named(work):
    work.store(list(range(9)))
    work.store(list(range(9)), keys=[[adapter("lora-1")]])
    plain, theirs = told(work)
    assert (plain.lora_name, theirs.lora_name) == (None, "lora-1")
    assert theirs.block_hashes == hashes_of(range(8), keys=[adapter("lora-1")])


def test_a_block_that_moves_is_no_news(work):
    filler = work.cache.pool.allocate(40)
    work.cache.pool.decref(filler[1::2])
    work.store(list(range(33)))
    work.cache.pool.decref(filler[::2])
    work.cache.events()
    assert work.cache.compact() > 0 and told(work) == []


@pytest.mark.parametrize("wrong", [{"form": "json"}, {"hashes": "hex"}])
def test_other_forms_are_refused(work, wrong):
    with pytest.raises(ValueError, match=r"json|hex"):
        encode_events(work.cache.events(), 4, time=0.0, **wrong)


def test_a_missing_extra_is_named(work, monkeypatch):
    work.store([1] * 5)
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", None)
    with pytest.raises(ImportError, match=r"pagedcache\[events\]"):
        encode_events(work.cache.events(), 4, time=0.0)
