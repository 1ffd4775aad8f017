"""Mooncake Stores: one in this process that keeps its rules, and the real one."""

import ctypes
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from redis_setting import free_port


class FakeStore:
    """What MooncakeTier calls, with the codes that Mooncake 0.3.13 was seen to return."""

    def __init__(self):
        self.objects, self.sessions, self.memory = {}, {}, {}
        self.code = 0  # that every call returns instead, where it is not 0
        self.raises = None
        self.room = 1 << 30

    def _codes(self, items, answer):
        if self.raises:
            raise self.raises
        return [self.code or answer(item) for item in items]

    def register_buffer(self, address, size):
        self.memory[address] = size
        return self.code

    def unregister_buffer(self, address):
        del self.memory[address]
        return 0

    def batch_is_exist(self, names):
        return self._codes(names, lambda name: int(name in self.objects))

    def batch_put_session_start(self, names, sizes):
        def start(item):
            name, size = item
            if name in self.sessions:
                return -600
            if name in self.objects:
                return -705
            if size > self.room:
                return -200
            self.sessions[name] = bytearray(size)
            self.room -= size
            return 0

        return self._codes(zip(names, sizes, strict=True), start)

    def batch_put_from_multi_buffer_ranges(self, names, pointers, sizes, offsets):
        def put(item):
            name, (pointer,), (size,), (offset,) = item
            self._require_registered(pointer, size)
            self.sessions[name][offset : offset + size] = ctypes.string_at(pointer, size)
            return size

        return self._codes(zip(names, pointers, sizes, offsets, strict=True), put)

    def batch_put_session_end(self, names):
        def end(name):
            if name not in self.sessions:
                return -600
            self.objects[name] = bytes(self.sessions.pop(name))
            return 0

        return self._codes(names, end)

    def batch_put_session_revoke(self, names):
        return self._codes(names, lambda name: 0 if self.sessions.pop(name, None) else -600)

    def get_into_ranges(self, pointers, names, into, begins, sizes):
        (pointer,), (names,), (into,), (begins,), (sizes,) = pointers, names, into, begins, sizes

        def get(item):
            name, (to,), (begin,), (size,) = item
            self._require_registered(pointer, to + size)
            if name not in self.objects:
                return -704
            if begin + size > len(self.objects[name]):
                return -600
            ctypes.memmove(pointer + to, self.objects[name][begin : begin + size], size)
            return size

        return [[[code] for code in self._codes(zip(names, into, begins, sizes, strict=True), get)]]

    def batch_remove(self, names, force):
        assert force
        return self._codes(names, lambda name: 0 if self.objects.pop(name, None) is not None else -704)

    def put_whole(self, name, value):
        """Put an object by hand."""
        self.objects[name] = value

    def _require_registered(self, pointer, size):
        assert any(begin <= pointer and pointer + size <= begin + length for begin, length in self.memory.items())


@contextmanager
def real_store():
    """Yield a store of one client, with a master on a free loopback port; None where Mooncake is not installed."""
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError:
        yield None
        return
    master = shutil.which("mooncake_master", path=str(Path(sys.executable).parent)) or "mooncake_master"
    port = free_port()
    options = [f"-rpc_port={port}", f"-metrics_port={free_port()}", "-rpc_address=127.0.0.1"]
    process = subprocess.Popen([master, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = MooncakeDistributedStore()
    try:
        for _ in range(10):  # the master needs a moment
            if not store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{port}"):
                break
        yield store
        store.close()
    finally:
        process.kill()
        process.wait()
