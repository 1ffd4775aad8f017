"""``pagedcache cache``: ls, verify, gc and export on a folder of a disk tier."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from disk_blocks import SLOT, get, key, opened, put, there


@pytest.fixture
def folder(tmp_path):
    """A folder with ten blocks, of which 3 was used last and 5 is pinned."""
    with opened(tmp_path / "tier") as tier:
        put(tier, list(range(10)))
        get(tier, [3])
        tier.pin([key(5)], "kept")
    return tmp_path / "tier"


def damage(folder, number):
    """Change a byte of a block."""
    with opened(folder) as tier:
        at = 4096 + tier._opened.writer.catalog.slots[key(number)] * SLOT + 4096 + 300
    with (folder / "blocks").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_ls(command, folder):
    status, out, err = command("cache", "ls", folder, "--limit", 4)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "fingerprint  74696e79" in lines and "blocks       10 in 80.00 KiB" in lines
    assert "pin 'kept'   1 block" in lines
    listed = [line.split()[0] for line in lines if len(line.split()[0]) == 64]
    assert listed == [key(number).hex() for number in (3, 0, 1, 2)]
    assert lines[-1] == "and 6 more; --limit 0 lists all"


def test_ls_as_json_beside_a_writer(command, folder):
    with opened(folder) as tier:
        put(tier, [20])
        report = json.loads(command("cache", "ls", folder, "--json", "--limit", 0)[1])
    assert (report["blocks"], report["nbytes"], report["pins"]) == (11, 11 * SLOT, {"kept": 1})
    assert report["format"]["layers"] == 3
    assert {"digest": key(5).hex(), "pins": ["kept"]} in report["by_use"]
    assert report["by_use"][0] == {"digest": key(20).hex(), "pins": []}


def test_verify(command, folder):
    assert command("cache", "verify", folder) == (0, "10 blocks right, 0 wrong\n", "")
    damage(folder, 4)
    damage(folder, 7)
    for _ in range(2):  # looking changes nothing
        status, out, _ = command("cache", "verify", folder)
        assert status == 1
        assert out.splitlines()[0] == "8 blocks right, 2 wrong"
        assert {f"wrong: {key(4).hex()}", f"wrong: {key(7).hex()}"} == set(out.splitlines()[1:])
    status, out, _ = command("cache", "verify", "--repair", folder, "--json")
    assert status == 1 and json.loads(out)["right"] == 8 and json.loads(out)["repaired"]
    assert command("cache", "verify", folder) == (0, "8 blocks right, 0 wrong\n", "")
    with opened(folder) as tier:
        assert there(tier, range(10)) == [0, 1, 2, 3, 5, 6, 8, 9]


def test_gc(command, folder):
    with opened(folder) as tier:
        put(tier, list(range(100, 400)))
    status, out, _ = command("cache", "gc", folder, "--size", "1 MiB")
    assert status == 0 and " evicted, 0 rows without a block dropped; " in out
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1 << 20
    with opened(folder) as tier:
        assert there(tier, [5]) == [5]
        assert tier.stats().blocks > 100


def test_gc_drops_rows_without_blocks(command, folder):
    (folder / "blocks").write_bytes((folder / "blocks").read_bytes()[: 4096 + 4 * SLOT])
    status, out, _ = command("cache", "gc", folder)
    assert status == 0 and "0 blocks evicted, 6 rows without a block dropped" in out
    assert out.rstrip().endswith("with 4 blocks")


def test_export(command, folder, tmp_path):
    damage(folder, 4)
    status, out, _ = command("cache", "export", folder, tmp_path / "copy")
    assert (status, out) == (0, "9 blocks copied, 1 left out\n")
    with opened(folder) as tier, opened(tmp_path / "copy") as copy:
        assert copy.digests() == [each for each in tier.digests() if each != key(4)]
        assert copy.pins() == tier.pins()
        assert there(copy, range(10)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    status, _, err = command("cache", "export", folder, tmp_path / "copy")
    assert status == 2 and "there already" in err


def test_what_is_no_such_folder(command, tmp_path):
    for name in ("ls", "verify", "gc"):
        status, out, err = command("cache", name, tmp_path / "none")
        assert (status, out) == (1, "") and "none" in err and err.count("\n") == 1
    tmp_path.chmod(0o700)
    assert "not a folder of a disk tier" in command("cache", "ls", tmp_path)[2]


def test_a_folder_that_is_in_use_is_not_changed(command, folder):
    with opened(folder):
        for arguments in (("gc",), ("verify", "--repair")):
            status, _, err = command("cache", *arguments, folder)
            assert status == 1 and "open for writing already" in err
