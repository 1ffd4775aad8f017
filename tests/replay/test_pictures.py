"""Pictures and the report: what is drawn is what was measured, and nothing comes from elsewhere."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from pagedcache.replay import Machine, SlotKind, capacities, replay_memory, replay_prefix, shipped_trace
from pagedcache.replay import pictures as draw
from pagedcache.replay.report import Section, html_page

MACHINE = Machine(26 * 10**9, 819_200)


@pytest.fixture(scope="module")
def usages():
    trace = shipped_trace("sharegpt").select(300, max_length=2048, seed=0)
    return replay_memory(trace, 6000, 2048, contiguous=["Orca-Max", "Orca-Oracle"], block_sizes=(16, 128))


@pytest.fixture(scope="module")
def rates():
    trace = shipped_trace("mooncake-synthetic").select(200)
    return replay_prefix(trace, capacities(trace), ["lru", "priority-ttl", "belady"])


def texts(figure):
    """All texts of a figure, those of its sub-figures included."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_waste_has_a_bar_for_each_kind_and_system(usages):
    figure = draw.waste_by_kind(usages, MACHINE)
    (axes,) = figure.axes
    widths = np.array([bar.get_width() for bar in axes.patches]).reshape(len(SlotKind), len(usages))
    assert widths.sum(0) == pytest.approx(100)
    assert widths[0] == pytest.approx([100 * usage.stored for usage in usages])
    assert axes.get_xlabel() == "mean share of the memory (%)"
    assert [label.get_text() for label in axes.get_yticklabels()] == [usage.system for usage in usages]
    for usage in usages:
        assert f"{usage.batch:.1f} sequences, {MACHINE.throughput(usage):,.0f} tokens/s" in texts(figure)


def test_lines_over_time_have_the_right_mean_and_end(usages):
    (axes,) = draw.usage_over_time(usages, MACHINE).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "time of the bandwidth model (minutes)",
        "share of the memory (%)",
    )
    assert len(axes.lines) == len(usages)
    for line, usage in zip(axes.lines, usages, strict=True):
        end = MACHINE.seconds(usage.samples[-1, 0], usage.samples[-1, 1]) / 60
        assert line.get_xdata()[-1] == pytest.approx(end, rel=0.05)
        assert line.get_ydata().mean() == pytest.approx(100 * usage.stored, abs=6)


def test_map_has_a_panel_for_each_system(usages):
    figure = draw.block_map(usages)
    assert len(figure.axes) == len(usages)
    cells = figure.axes[0].images[0].get_array().reshape(-1, 3)[: usages[0].slots]
    from matplotlib.colors import to_rgb

    external = (usages[0].kinds == SlotKind.EXTERNAL).sum()
    assert (cells == to_rgb(draw.KINDS[SlotKind.EXTERNAL][1])).all(1).sum() == external > 0


def test_large_maps_are_sampled(usages, monkeypatch):
    monkeypatch.setattr(draw, "CELLS", 100)
    for axes in draw.block_map(usages).axes:
        assert axes.images[0].get_array().size < 3 * 200


def test_curves(rates):
    figure = draw.hit_rate_curves(rates, bytes_per_token=819_200)
    axes = figure.axes[0]
    drawn = {tuple(np.round(line.get_ydata(), 6)) for line in axes.lines}
    for policy in ("lru", "priority-ttl", "belady"):
        assert tuple(np.round([100 * r.token_rate for r in rates if r.policy == policy], 6)) in drawn
    assert {"LRU", "priority and TTL", "Belady (knows the future)"} < set(texts(figure))
    assert axes.get_xlabel() == "capacity of the cache (tokens)"
    assert "GiB of K and V" in texts(figure)


def test_a_single_point_can_be_drawn():
    trace = shipped_trace("mooncake-synthetic").select(20)
    draw.hit_rate_curves(replay_prefix(trace, [5], ["lru"]))


def test_files_are_pictures_and_the_same_each_time(usages, tmp_path):
    for name in ("a", "b"):
        draw.save(draw.waste_by_kind(usages, MACHINE), tmp_path / f"{name}.png")
        draw.save(draw.overview(usages[:2], MACHINE), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["a.pdf", "a"])
def test_other_endings_are_refused(usages, tmp_path, name):
    with pytest.raises(ValueError, match=r"pictures are .png or .svg, not"):
        draw.save(draw.waste_by_kind(usages, MACHINE), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_report_stands_alone(usages):
    figures = [draw.waste_by_kind(usages, MACHINE), draw.block_map(usages)]
    page = html_page("<b>x</b>", [Section("Part & part", "a < b", [["h"], ["<i>"]], figure) for figure in figures])
    assert page.count("<svg") == page.count("</svg>") == 2
    assert "<b>x</b>" not in page and "&lt;b&gt;x&lt;/b&gt;" in page and "<td>&lt;i&gt;</td>" in page
    for fetched in ("<script", "<link", "<iframe", "src=", "@import", "url(http"):
        assert fetched not in page
    links = re.findall(r'href="(#|data:image/png|.)', page)
    assert set(links) == {"#", "data:image/png"}
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 10
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    assert page == html_page(
        "<b>x</b>",
        [
            Section("Part & part", "a < b", [["h"], ["<i>"]], figure)
            for figure in (draw.waste_by_kind(usages, MACHINE), draw.block_map(usages))
        ],
    )
