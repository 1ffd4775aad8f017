"""The one way in which `check()` reports a broken invariant; works under ``python -O`` too."""


def require(holds: bool, what: str) -> None:
    """Raise AssertionError with `what` unless `holds`."""
    if not holds:
        raise AssertionError(f"pagedcache invariant broken: {what}")
