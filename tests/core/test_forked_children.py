"""Contract 13: after fork() the child works, and what it does is nothing to the parent."""

import os
import subprocess
import sys

import pytest

FORK = """
import os, signal
from pagedcache.core import BlockPool, SequenceTable

def prefill(tokens):
    sid = int(table.admit([tokens]).ids[0])
    table.commit(table.extend([sid], len(tokens)), tokens)
    return sid

table = SequenceTable(BlockPool(16), 4)
sid = prefill([1] * 9)
step = table.extend([sid], 1)
child = os.fork()
if child == 0:
    signal.alarm(30)    # a child that hangs fails the test, not the run
    table.commit(step, [1])
    prefill([2] * 9)
    table.release([sid])
    table.check()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
table.commit(step, [7])
assert table.position(sid) == 10 and table.match([[2] * 9])[0] == 0
table.check()
"""


FORK_ALL = """
import os, signal
from pagedcache import Namespace
from pagedcache.core import BlockPool, SequenceTable

inside = {"namespace": Namespace("n", secret=b"0123456789abcdef")}
table = SequenceTable(BlockPool(64), 4, steps_in_flight=2, events="tokens")
a, b, c = table.admit([[1] * 9] * 3, **inside).ids.tolist()
step = table.extend([a, b, c], 9)
table.commit(step, [1] * 27)
table.swap_out([c])
table.pin([[1] * 9], "pinned", **inside)
table.cover(5)
old, new = table.extend([a], 3), table.extend([b, a], 2)
table.release([b])

def finish(order):
    assert len(table.events()) == 2
    table.commit(old, [2] * 3)
    table.abandon(new) if order else table.commit(new, [3] * 4)
    table.swap_in([c])
    table.unpin("pinned")
    table.reorder([a, c], [1, 0])
    table.release([a, c])
    table.retire(5)
    table.invalidate(namespace="n")
    assert table.stats().free == 64 and set(table.events()["kind"].tolist()) == {1, 2}
    table.check()

child = os.fork()
if child == 0:
    signal.alarm(30)    # a child that hangs fails the test, not the run
    finish(0)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert table.stats().sequences == 2 and table.num_pinned == 2 and not old.closed
finish(1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.parametrize("script", [FORK, FORK_ALL], ids=["a step", "everything"])
def test_a_forked_child_has_a_table_of_its_own(script):
    """In a process of its own: a thread of another test that is just ending may hold malloc's lock at the fork."""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
