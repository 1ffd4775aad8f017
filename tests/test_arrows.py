"""Imports run one way: cli -> sizing, replay -> serving -> cache -> core; backends know nothing above the protocol."""

import ast
from pathlib import Path

import pytest

import pagedcache

PACKAGE = Path(pagedcache.__file__).parent
MAY_NOT = {  # a module under the key imports nothing under the values, not even inside a function
    "core": ["backends", "cache", "cli", "replay", "sequence", "serving", "simple", "sizing", "spec", "testing"],
    "errors": ["backends", "cache", "cli", "core", "replay", "serving", "simple", "sizing", "spec", "testing"],
    "exchange": [
        "_dtypes",
        "backends",
        "cache",
        "cli",
        "core",
        "errors",
        "keys",
        "replay",
        "sequence",
        "serving",
        "simple",
        "sizing",
        "spec",
        "testing",
        "tiers",
    ],
    "tiers": ["backends", "cache", "cli", "core", "replay", "sequence", "serving", "simple", "sizing", "testing"],
    "saved": ["cache", "cli", "replay", "sequence", "serving", "simple", "sizing", "testing"],
    "spec": ["backends", "cache", "cli", "core", "replay", "serving", "simple", "sizing", "testing"],
    "backends": ["cache", "cli", "replay", "sequence", "serving", "simple", "sizing", "testing"],
    "cache": ["cli", "replay", "serving", "simple", "sizing", "testing"],
    "sequence": ["cli", "replay", "serving", "simple", "sizing", "testing"],
    "simple": ["cache", "cli", "replay", "serving", "sizing", "testing"],
    "serving": ["cli", "replay", "sizing", "testing"],
    "sizing": ["cli", "replay", "simple", "testing"],
    "monitoring": ["cli", "replay", "serving", "simple", "sizing", "testing"],
    "replay": ["cli", "simple", "sizing", "testing"],
    "testing": ["cli", "replay", "serving", "sizing"],
}
MAY_NOT["inspection"] = ["cli", "serving", "simple", "sizing", "testing"]
MAY_NOT["interop"] = ["cli", "monitoring", "replay", "serving", "simple", "sizing", "testing"]
for _name in set(MAY_NOT) - {"interop"}:
    MAY_NOT[_name].append("interop")  # nobody needs a framework
for _name in set(MAY_NOT) - {"inspection"}:
    MAY_NOT[_name].append("inspection")  # which looks on, and nobody waits for
for _name in set(MAY_NOT) - {"interop", "monitoring"}:
    MAY_NOT[_name].append("monitoring")  # which looks on, and nobody waits for
PART_OF = {  # private modules are held to what the public one is that they are part of
    "_bookkeeping": "cache",
    "_chunks": "cache",
    "_explain": "spec",
    "_layer_group": "spec",
    "_layer_load": "cache",
    "_layer_places": "spec",
    "_loading": "cache",
    "_pages": "simple",
    "_pool_records": "cache",
    "_prefetch": "cache",
    "_residency": "cache",
    "_restoring": "cache",
    "_saved_blocks": "cache",
    "_saved_cache": "cache",
    "_saved_origins": "cache",
    "_saving": "cache",
    "_sight": "cache",
    "_states": "cache",
    "_stepping": "cache",
    "_swap_room": "cache",
    "_tier_bugs": "cache",
    "_tier_search": "cache",
    "_tier_set": "cache",
    "_tier_writer": "cache",
    "_tiering": "cache",
}


def modules():
    """Map the dotted name below pagedcache to the path of every module, through the link backends."""
    folders = sorted(p for p in PACKAGE.iterdir() if p.is_dir())
    paths = [*PACKAGE.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    names = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in sorted(zip(names, paths, strict=True))}


def imported(path):
    """Names below pagedcache that a module imports at run time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("pagedcache.") for name in names if name.startswith("pagedcache."))


@pytest.mark.parametrize("name", modules())
def test_arrows_run_one_way(name):
    path = modules()[name]
    top, *rest = name.split(".")
    top = PART_OF.get(top, top)
    for target in imported(path):
        first = target.split(".")[0]
        assert PART_OF.get(first, first) not in MAY_NOT.get(top, []), f"pagedcache.{name} imports pagedcache.{target}"
        if top == "backends" and rest and target.startswith("backends."):
            folder = target.split(".")[1]  # host is what several backends share, and imports none of them
            same = (rest[0], "cuda") if rest[0] == "cuda_emulated" else (rest[0],)  # which runs the other's kernels
            assert folder in (*same, "host", "protocol") or folder.startswith("_") or len(rest) == 1, (
                f"backend {rest[0]} imports backend {folder}"
            )
