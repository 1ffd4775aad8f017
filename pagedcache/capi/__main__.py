"""Options for a compiler: ``cc decode.c $(python -m pagedcache.capi --cflags --libs)``."""

import argparse
import sys
from pathlib import Path

from pagedcache.capi import get_include, get_library


def main(arguments: list[str] | None = None) -> int:
    """Print the options that were asked for, in one line."""
    parser = argparse.ArgumentParser("python -m pagedcache.capi", description=__doc__)
    parser.add_argument("--cflags", action="store_true", help="where the header is")
    parser.add_argument("--libs", action="store_true", help="where the library is, at build time and at run time")
    parser.add_argument("--rustc", action="store_true", help="the same as --libs, as rustc takes it")
    asked = parser.parse_args(arguments)
    if not (asked.cflags or asked.libs or asked.rustc):
        parser.error("ask for --cflags, --libs, both of them, or --rustc")
    folder = Path(get_library()).parent
    words = [f"-I{get_include()}"] if asked.cflags else []
    words += [f"-L{folder}", "-lpagedcache", f"-Wl,-rpath,{folder}"] if asked.libs else []
    words += ["-L", str(folder), "-C", f"link-arg=-Wl,-rpath,{folder}"] if asked.rustc else []
    print(*words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
