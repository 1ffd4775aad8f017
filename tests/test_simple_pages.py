"""The simple API: pages and page tables, who holds them, and what they refuse."""

import copy
import gc
import pickle

import numpy as np
import pytest
from simple_setting import DIM, HEADS, PAGE, Setting

from pagedcache import InvalidBlock
from pagedcache.simple import BlockManager, PageTable


@pytest.fixture
def s():
    return Setting()


# -- pages ------------------------------------------------------------------------------------------


def test_pages_are_counted(s):
    taken = [s.manager.allocate_page() for _ in range(3)]
    assert len(set(taken)) == 3
    assert s.manager.allocated_pages == set(taken)
    assert sorted(s.manager.free_pages + taken) == list(range(8))
    assert [s.manager.pages[page].ref_count for page in taken] == [1, 1, 1]
    for page in taken:
        s.manager.free_page(page)
    assert s.manager.free_pages == list(range(8))


def test_double_free_raises_and_changes_nothing(s):
    """M04."""
    page = s.manager.allocate_page()
    s.manager.free_page(page)
    before = s.state()
    for wrong in (page, -1, 8, 2**31, 2**63):
        with pytest.raises(InvalidBlock, match=f"page {wrong} "):
            s.manager.free_page(wrong)
    assert s.state() == before
    assert sorted(s.manager.allocate_page() for _ in range(8)) == list(range(8))


def test_free_page_takes_page_ids_only(s):
    page = s.manager.allocate_page()
    with pytest.raises(TypeError):
        s.manager.free_page(float(page))
    assert s.manager.pages[page].ref_count == 1
    s.manager.free_page(np.int64(page))
    assert s.manager.pages[page].ref_count == 0


def test_page_of_a_sequence_is_not_freed_by_free_page(s):
    s.fill("a", 1)
    page = s.sequences.sequences["a"].get_physical_page(0)
    with pytest.raises(InvalidBlock, match="free_sequence"):
        s.manager.free_page(page)
    assert s.manager.pages[page].ref_count == 1


def test_mapped_page_survives_free_page(s):
    page = s.manager.allocate_page()
    table = PageTable(s.manager)
    table.map_page(0, page)
    assert s.manager.pages[page].ref_count == 2
    s.manager.free_page(page)
    assert s.manager.pages[page].ref_count == 1
    del table
    gc.collect()
    assert page in s.manager.free_pages


def test_pages_are_views(s):
    page = s.manager.pages[s.manager.allocate_page()]
    page.keys[1] = 3
    assert (page.keys[1] == 3).all()
    assert page.keys.shape == page.values.shape == (PAGE, HEADS, DIM)
    s.manager.pool.incref([page.page_id + 1])
    assert not page.keys.flags.writeable
    assert not page.values.flags.writeable


def test_a_manager_is_freed_without_the_cycle_collector():
    import weakref

    manager = BlockManager(4, PAGE, HEADS, DIM)
    watch = weakref.ref(manager.storage)
    _ = manager.pages[0].keys
    gc.disable()
    try:
        del manager, _
        assert watch() is None
    finally:
        gc.enable()


# -- page tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tables_cannot_be_copied(s, copier):
    s.fill("a", 5)
    before = s.state()
    with pytest.raises(TypeError, match="clone_sequence"):
        copier(s.sequences.sequences["a"])
    assert s.state() == before


def test_the_mapping_is_read_only_and_names_clone_sequence(s):
    s.fill("a", 5)
    table = s.sequences.sequences["a"]
    with pytest.raises(AttributeError, match="clone_sequence"):
        PageTable().logical_to_physical = table.logical_to_physical.copy()
    with pytest.raises(TypeError):
        table.logical_to_physical[0] = 3
    with pytest.raises(AttributeError):
        s.manager.pages[0].ref_count += 1
    with pytest.raises(TypeError):
        s.sequences.sequences["b"] = table


def test_mapping_another_page_lets_the_first_go(s):
    first, second = s.manager.allocate_page(), s.manager.allocate_page()
    table = PageTable(s.manager)
    table.map_page(0, first)
    table.map_page(0, second)
    table.map_page(0, second)
    assert [s.manager.pages[page].ref_count for page in (first, second)] == [1, 2]


@pytest.mark.parametrize("page", [-1, 8, 5, 2**40])
def test_pages_that_nobody_holds_cannot_be_mapped(s, page):
    table = PageTable(s.manager)
    with pytest.raises(InvalidBlock, match=f"page {page} "):
        table.map_page(0, page)
    assert not table.logical_to_physical
    with pytest.raises(ValueError, match="logical_id"):
        table.map_page(-1, s.manager.allocate_page())


def test_a_plain_table_holds_nothing(s):
    page = s.manager.allocate_page()
    table = PageTable()
    table.map_page(0, page)
    assert s.manager.pages[page].ref_count == 1
    s.manager.pages[page].keys[:2] = 0
    s.manager.pages[page].values[:2] = [[[2.0]], [[4.0]]]
    out = s.attention.compute(np.ones((1, HEADS, DIM), np.float32), table, 2)
    np.testing.assert_allclose(out, 3.0)


def test_scales_are_there_for_eight_bits_only_and_guarded_like_keys(s):
    assert s.manager.pages[0].scales is None
    s = Setting(dtype="int8")
    page = s.manager.pages[s.manager.allocate_page()]
    assert all(scales.flags.writeable for scales in page.scales)
    s.manager.pool.incref([page.page_id + 1])
    assert not any(scales.flags.writeable for scales in page.scales)
