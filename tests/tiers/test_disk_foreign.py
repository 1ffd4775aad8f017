"""Folders of other models, dtypes, shapes and versions are refused by the name of the field."""

import dataclasses
import json
import sqlite3

import pytest
from disk_blocks import FORM, get, opened, put

from pagedcache.errors import CorruptFile, ForeignFormat
from pagedcache.tiers import BlockFormat, DiskTier
from pagedcache.tiers._checked import crc32c
from pagedcache.tiers.block_format import MAGIC

FIELDS = [field.name for field in dataclasses.fields(BlockFormat) if field.name not in ("version", "layout")]
READONLY = pytest.mark.parametrize("readonly", [False, True])


@pytest.fixture
def folder(tmp_path):
    """A folder with two blocks."""
    with opened(tmp_path / "tier") as tier:
        put(tier, [0, 1])
    return tmp_path / "tier"


def other(field):
    """FORM with another value of a field."""
    value = getattr(FORM, field)
    values = {"dtype": "float16", "fingerprint": "00"}
    return dataclasses.replace(FORM, **{field: values.get(field, value + 1 if isinstance(value, int) else value)})


@READONLY
@pytest.mark.parametrize("field", FIELDS)
def test_a_foreign_folder_is_refused(folder, field, readonly):  # T08
    with pytest.raises(ForeignFormat, match=f"blocks holds blocks with {field} "):
        opened(folder, form=other(field), readonly=readonly)
    with opened(folder) as tier:
        assert get(tier, [0, 1]) == 2


@READONLY
@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_version_of_the_slab_is_refused(folder, version, readonly):  # T08
    text = json.dumps({**dataclasses.asdict(FORM), "version": version}).encode()
    with (folder / "blocks").open("r+b") as file:
        file.write(MAGIC + len(text).to_bytes(4, "little") + crc32c(text).to_bytes(4, "little") + text)
    with pytest.raises(ForeignFormat, match="version"):
        opened(folder, readonly=readonly)


@READONLY
@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("PRAGMA user_version = 2", ForeignFormat, "index version 2"),
        ("PRAGMA application_id = 7", CorruptFile, "not an index of pagedcache"),
        ("CREATE TABLE more (x)", CorruptFile, "other tables"),
        ("DROP TABLE pins", CorruptFile, "other tables"),
        ("ALTER TABLE blocks ADD COLUMN x", CorruptFile, "other tables"),
        ("CREATE TRIGGER t AFTER INSERT ON blocks BEGIN DELETE FROM pins; END", CorruptFile, "other tables"),
        ("CREATE VIEW v AS SELECT 1", CorruptFile, "other tables"),
    ],
)
def test_another_index_is_refused(folder, statement, error, said, readonly):  # T08
    database = sqlite3.connect(folder / "index.sqlite")
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(error, match=said):
        opened(folder, readonly=readonly)


def test_an_index_of_something_else_is_refused(folder):
    (folder / "index.sqlite").unlink()
    database = sqlite3.connect(folder / "index.sqlite")
    database.execute("CREATE TABLE notes (text)")
    database.commit()
    database.close()
    (folder / "index.sqlite").chmod(0o600)
    with pytest.raises(CorruptFile, match="not an index"):
        opened(folder)


def test_the_format_of_a_folder(folder, tmp_path):
    assert DiskTier.format_of(folder) == FORM
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(CorruptFile, match="not a folder of a disk tier"):
        DiskTier.format_of(tmp_path / "empty")
