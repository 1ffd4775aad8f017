"""What a power cut leaves of a folder, from a record of all that a process did to its files (tiers/powercut.c).

The rules are the system's promises and no more: what was written before a file's last sync is there; of what was
written since, any part may be, in any order, torn at sectors. Names appear and go with a sync of the folder, or
before it, in any number.
"""

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SECTOR = 512
HEAD = struct.Struct("<IIQQQ")
SOURCE = Path(__file__).parent / "tiers" / "powercut.c"


def shim(folder):
    """Compile the shim; its path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = folder / "powercut.so"
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl", "-lpthread"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"the shim does not compile here: {built.stderr[:200]}")
    return made


def records(path):
    """Every (what, file, offset, name, data) of a log."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        what, name_nbytes, file, offset, nbytes = HEAD.unpack_from(data, at)
        at += HEAD.size
        name = data[at : at + name_nbytes].decode()
        at += name_nbytes
        content = b""
        if chr(what) in "wm":
            content = data[at : at + nbytes]
            at += nbytes
        yield chr(what), file, offset, name, content


@dataclass
class Content:
    """A file: what is surely on the disk, and what was done since the last sync."""

    durable: bytearray = field(default_factory=bytearray)
    since: list = field(default_factory=list)

    def sync(self):
        for each in self.since:
            apply(self.durable, each, range(10**9))
        self.since.clear()

    def after_cut(self, random):
        """One of the many contents that a cut can leave."""
        left = bytearray(self.durable)
        done = [each for each in self.since if random.random() < random.choice([0.2, 0.8, 1.0])]
        if random.random() < 0.7:
            random.shuffle(done)
        for each in done:
            count = -(-len(each[2]) // SECTOR) + 1
            torn = random.random() < 0.5
            apply(left, each, {n for n in range(count) if not torn or random.random() < 0.6})
        return left


def apply(content, change, sectors):
    """Do to the bytes what a record says, as far as these of its sectors go."""
    what, offset, data = change
    if what in "tg":
        if what == "t":
            del content[offset:]
        content.extend(bytes(max(0, offset - len(content))))
        return
    for number in range(-(-len(data) // SECTOR)):
        if number in sectors:
            begin = number * SECTOR
            piece = data[begin : begin + SECTOR]
            content.extend(bytes(max(0, offset + begin - len(content))))
            content[offset + begin : offset + begin + len(piece)] = piece


class Disk:
    """A folder on a disk whose power can be cut after any record."""

    def __init__(self):
        self.files = {}
        self.names = {}  # that are surely there
        self.since = []  # what was done to names since the folder's last sync
        self.marks = b""
        self.counts = {}

    def take(self, record):
        """Go one record on."""
        what, file, offset, name, data = record
        self.counts[what] = self.counts.get(what, 0) + 1
        if what == "m":
            self.marks += data
        elif what == "o":
            if file not in self.names_now().values() or self.names_now().get(name) != file:
                self.files[file] = Content()  # created: an inode may have been another file's
                self.since.append(("link", name, file))
        elif what == "r":
            self.since.append(("rename", *name.split("/")))
        elif what == "u":
            self.since.append(("unlink", name))
        elif what == "s" and file == 0:
            self.names, self.since = self.names_now(), []
        elif what == "s":
            self.files[file].sync()
        else:
            self.files[file].since.append((what, offset, data))

    def names_now(self):
        """The names that a running process sees."""
        return renamed(self.names, self.since)

    def cut(self, folder, random):
        """Make a folder with one of the many states that a cut leaves now."""
        done = self.since[: random.randint(0, len(self.since))]
        if random.random() < 0.5:
            done = [each for each in self.since if random.random() < 0.5]
        folder.mkdir(mode=0o700)
        for name, file in renamed(self.names, done).items():
            path = folder / name
            path.write_bytes(self.files[file].after_cut(random))
            os.chmod(path, 0o600)


def renamed(names, changes):
    """Names after some changes; those of names that are not there change nothing."""
    names = dict(names)
    for what, name, *more in changes:
        if what == "link":
            names[name] = more[0]
        elif name in names:
            file = names.pop(name)
            if what == "rename":
                names[more[0]] = file
    return names
