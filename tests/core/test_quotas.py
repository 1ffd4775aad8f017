"""NamespaceQuotas: a namespace that keeps more than its quota gives way before others do."""

import random
from copy import deepcopy

import pytest
from drive import blocks_of, prefill

from pagedcache import Namespace, salt
from pagedcache.core import LRU, BlockPool, NamespaceQuotas, SequenceTable


def table_with(quotas, num_blocks=12):
    return SequenceTable(BlockPool(num_blocks, NamespaceQuotas(quotas)), 1)


def leave(table, prompt, namespace=None, **options):
    table.release([prefill(table, prompt, namespace=namespace, **options)])


def found(table, namespace, *prompts):
    return table.match([[*prompt, 0] for prompt in prompts], namespace=namespace).tolist()


def test_who_keeps_too_much_gives_way_though_others_are_older():
    table = table_with({"a": 2})
    leave(table, [1, 2, 3])
    leave(table, [1, 2, 3, 4], "a")
    assert table.evict(2) == 2
    assert found(table, None, [1, 2, 3]) == [3] and found(table, "a", [1, 2, 3, 4]) == [2]
    table.evict(1)
    assert found(table, None, [1, 2, 3]) == [2], "within its quota it is like any other"
    table.check()


def test_while_there_is_memory_a_quota_takes_nothing():
    table = table_with({"a": 0})
    leave(table, list(range(10)), "a")
    assert found(table, "a", range(10)) == [10]
    leave(table, [5, 6, 7], "b")
    assert found(table, "a", range(10)) == [9] and found(table, "b", [5, 6, 7]) == [3]


def test_a_scan_of_one_namespace_leaves_the_others_alone():
    """Under LRU it does not."""
    for policy, kept in ((LRU(), 0), (NamespaceQuotas({"scan": 3}), 4)):
        table = SequenceTable(BlockPool(12, policy), 1)
        leave(table, [1, 2, 3, 4], "calm")
        for k in range(10):
            leave(table, [100 + k] * 3, "scan")
        assert found(table, "calm", [1, 2, 3, 4]) == [kept]
        table.check()


def test_what_begins_later_is_of_the_same_namespace():
    table = table_with({"a": 0, None: 0})
    leave(table, [1, 2, 3], "a", keys=[[salt("pepper", 1)]])
    leave(table, [1, 2, 3], "b")
    leave(table, [4, 5, 6])
    assert table.evict(6) == 6
    assert found(table, "b", [1, 2, 3]) == [3]


def test_names_are_those_of_namespaces():
    table = table_with({Namespace("a", secret=b"sixteen bytes or more"): 0})
    leave(table, [1, 2], "b")
    leave(table, [1, 2], b"a")
    table.evict(2)
    assert found(table, "b", [1, 2]) == [2]


@pytest.mark.parametrize(
    ("quotas", "error", "message"),
    [
        ({"a": -1}, ValueError, r"the quota of b'a' is -1"),
        ({"a": 1.5}, TypeError, r"the quota of b'a'"),
        ({"a": 1, b"a": 2}, ValueError, r"namespace b'a' has two quotas"),
        ({None: 1, "": 2}, ValueError, r"namespace b'' has two quotas"),
        ({str(k): 1 for k in range(255)}, ValueError, "quotas has 255 entries; it must have at most 254"),
        ([("a", 1)], TypeError, "quotas must map namespaces to numbers of blocks, not be a list"),
        ({5: 1}, TypeError, "the name of a namespace"),
    ],
)
def test_wrong_quotas_are_refused(quotas, error, message):
    with pytest.raises(error, match=message):
        NamespaceQuotas(quotas)


class Model:
    """Idle contents, oldest first; a content is a namespace and its tokens."""

    def __init__(self, quotas):
        self.quotas, self.idle, self.over = quotas, [], []

    def of(self, namespace):
        return [content for content in self.idle if content[0] == namespace]

    def watch(self):
        for namespace, quota in self.quotas.items():
            is_over = len(self.of(namespace)) > quota
            if is_over != (namespace in self.over):
                (self.over.append if is_over else self.over.remove)(namespace)

    def insert(self, content):
        self.idle.append(content)
        self.watch()

    def remove(self, content):
        self.idle.remove(content)
        self.watch()

    def order(self):
        rehearsal = deepcopy(self)
        return [rehearsal.pop() for _ in self.idle]

    def pop(self):
        content = self.of(self.over[0])[0] if self.over else self.idle[0]
        self.remove(content)
        return content


@pytest.mark.parametrize("seed", range(6))
def test_random_tries_of_three_namespaces(driver, seed):
    choose = random.Random(seed)
    quotas = choose.choice([{"a": 3, "b": 5}, {"a": 0, None: 4}, {"a": 2, "b": 2, None: 2}, {}])
    table, model = table_with(quotas, 24), Model(quotas)
    names, rows = {}, {}  # block -> content; handle -> blocks
    for _ in range(300):
        if choose.random() < 0.5:
            namespace = choose.choice(["a", "b", None])
            prompt = [choose.randrange(2) for _ in range(choose.randint(1, 7))]
            before = table.stats().evictions
            admission = table.admit([prompt], namespace=namespace)
            if admission.status[0]:
                continue
            sid, hits = int(admission.ids[0]), int(admission.cached[0])
            contents = [(namespace, *prompt[: k + 1]) for k in range(len(prompt))]
            for content in contents[:hits]:
                if content in model.idle:
                    model.remove(content)
            for _ in range(table.stats().evictions - before):
                model.pop()
            table.commit(table.extend([sid], [len(prompt) - hits]), prompt[hits:])
            for content in contents[hits:]:
                if content in model.idle:  # the last token's block: adopted
                    model.remove(content)
            rows[sid] = blocks_of(table, sid)
            names |= dict(zip(rows[sid], contents, strict=True))
        elif rows:
            sid = choose.choice(list(rows))
            chain = rows.pop(sid)
            table.release([sid])
            held = {block for blocks in rows.values() for block in blocks}
            for block in reversed(chain):
                if block not in held:
                    model.insert(names[block])
        assert [names[block] for block in driver.order(table.pool)] == model.order()
        table.check()
    assert table.stats().evictions > 20
