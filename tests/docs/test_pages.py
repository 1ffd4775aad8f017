"""README and docs: their Python runs, their commands parse, their links lead somewhere, no name is missing."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import pkgutil
import re
import shlex
from itertools import zip_longest
from pathlib import Path

import pytest

import pagedcache

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page, language):
    """(line, source, expected output or None) of each block; a text block right below is its output."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    for block, below in zip_longest(found, found[1:]):
        if block[1] == language:
            is_output = below is not None and below[1] == "text" and not text[block.end() : below.start()].strip()
            yield text[: block.start()].count("\n") + 1, block[2], below[2] if is_output else None


def run(page, line, source, expected, names):
    """Run a block; where the page shows its output, compare ("..." stands for anything)."""
    printed = io.StringIO()
    code = compile("\n" * line + source, str(page), "exec")  # so that a traceback names the line of the page
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    flags = doctest.ELLIPSIS
    if expected is not None and not doctest.OutputChecker().check_output(expected, printed.getvalue(), flags):
        pytest.fail(f"{page.name}:{line} printed\n{printed.getvalue()}\nand the page says\n{expected}")


def needs_torch(source):
    return "import torch" in source


@each_page
def test_python_of_a_page_runs(page, request):
    """All blocks of a page, from top to bottom, as a reader would type them."""
    names = {"__name__": page.stem}
    for line, source, expected in blocks(page, "python"):
        if "cuda-emulated" in source:
            request.getfixturevalue("cxx")
        if not needs_torch(source):
            run(page, line, source, expected, names)


@each_page
def test_torch_blocks_run_on_their_own(page):
    sources = [block for block in blocks(page, "python") if needs_torch(block[1])]
    if sources:
        pytest.importorskip("torch")
    if any("from transformers" in source for _, source, _ in sources):
        pytest.importorskip("transformers", minversion="5.24")  # which calls the argument cache
    for block in sources:
        run(page, *block, {"__name__": page.stem})


@pytest.mark.parametrize("name", ["README", "quickstart", "tutorial"])
def test_pages_have_python(name, checkout):
    page = next(page for page in PAGES if page.stem == name)
    assert list(blocks(page, "python"))


@each_page
def test_commands_parse(page):
    """Every `pagedcache` command that a page shows has the options that it names."""
    click = pytest.importorskip("click")
    app = pytest.importorskip("pagedcache.cli.app").app
    parent = click.Context(app, **app.context_settings)  # a command keeps the help options of its first context
    for line, source, _ in blocks(page, "console"):
        for command in re.findall(r"^\$ (?:.*&& )?pagedcache (.*)$", source, re.MULTILINE):
            found, arguments = app, shlex.split(command)
            while isinstance(found, click.Group):
                name, *arguments = arguments
                found = found.commands[name]
            try:
                found.make_context(name, arguments, parent=parent)
            except click.UsageError as error:
                pytest.fail(f"{page.name}:{line}: {error.format_message()}")


def anchors(page):
    """What can stand behind # in a link to this page, as GitHub and most generators make it."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}, which has no such heading"


def listed(page):
    """Names in the toctrees of a page of the site."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return {line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")}


def test_every_page_is_in_the_site_and_in_the_list(checkout):
    docs = checkout / "docs"
    names = {page.stem for page in docs.glob("*.md")} - {"README", "index"}
    chapters = listed(docs / "index.md") - {"gallery/index"}  # which is made of the examples
    pages = set().union(*(listed(docs / f"{name}.md") for name in chapters))
    assert names == chapters | pages
    text = (docs / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(pages - {"api"}) if f"({name}.md)" not in text] == []


# -- reference.md -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(checkout):
    """Heading -> names that begin the rows of the tables below it."""
    text = (checkout / "docs" / "reference.md").read_text(encoding="utf-8")
    sections = re.split(r"^##+ `([\w.]+)`.*$", text, flags=re.MULTILINE)[1:]
    rows = [re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", body, re.MULTILINE) for body in sections[1::2]]
    names = [[name for row in each for name in re.findall(r"`([\w.]+)`", row)] for each in rows]
    return dict(zip(sections[::2], names, strict=True))


def is_installed(name):
    """Whether what a module of interop is named after is there."""
    parts = name.split(".")
    return parts[1] != "interop" or len(parts) < 3 or importlib.util.find_spec(parts[2]) is not None


def public_modules():
    """Packages with `__all__`, and the modules that users import by their own name."""
    found = pkgutil.walk_packages(pagedcache.__path__, "pagedcache.")
    packages = [module.name for module in found if module.ispkg and is_installed(module.name)]
    named = ["simple", "spec", "keys", "digests", "errors"]
    modules = ["pagedcache", *packages, *(f"pagedcache.{name}" for name in named)]
    return sorted(name for name in modules if hasattr(importlib.import_module(name), "__all__"))


@pytest.mark.parametrize("name", public_modules())
def test_reference_has_every_exported_name(name, reference):
    assert sorted(reference[name]) == sorted(importlib.import_module(name).__all__)


@pytest.mark.parametrize("name", ["KVCache", "Step", "CacheSpec", "CacheStats", "BlockPool", "SequenceTable"])
def test_reference_has_every_public_attribute(name, reference):
    cls = getattr(pagedcache, name)
    public = {attribute for attribute in dir(cls) if not attribute.startswith("_")}
    public |= set(getattr(cls, "__annotations__", ()))  # fields of dataclasses
    if name == "KVCache":
        with cls(pagedcache.CacheSpec(1, 1, 1), num_blocks=1) as cache:
            public |= {attribute for attribute in vars(cache) if not attribute.startswith("_")}
    assert set(reference[name]) == public
