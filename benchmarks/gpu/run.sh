#!/bin/sh
# What is to be known of backend cuda on this machine's GPU, in at most eight minutes: is it right, and how fast?
#
#     benchmarks/gpu/run.sh [--parts decode,prefill]     # see _gpu/__main__.py for more
#
# Needs python3 with NumPy and CuPy; torch, pytest and compute-sanitizer where they are to have a part; no network.
# Results go to $OUT, or else benchmarks/results.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export PYTHONPATH="$root:$here${PYTHONPATH:+:$PYTHONPATH}" OPENBLAS_NUM_THREADS=1
python=${PYTHON:-python3}
works() { "$python" -c "import pagedcache, pagedcache.backends.cuda, pagedcache.backends.cpu" 2>&1; }

cd "$root"
if ! "$python" -c "import sys; sys.exit(sys.version_info < (3, 11))"; then
    echo "$python is $("$python" -V); pagedcache needs Python 3.11 or later: name one in \$PYTHON" >&2
    exit 2
fi
if ! works >/dev/null; then
    if ! missing=$("$python" -c "import Cython, numpy, setuptools" 2>&1); then
        echo "pagedcache is not built for this Python, and cannot be built: ${missing##*
}. Install cython, numpy and setuptools, or bring a tree that was built for $("$python" -V)." >&2
        works | tail -n 1 >&2 || true
        exit 2
    fi
    echo "building in place" >&2
    if ! log=$("$python" setup.py build_ext --inplace 2>&1); then
        echo "$log" | tail -n 20 >&2
        exit 2
    fi
fi
works >/dev/null || { works >&2; exit 2; }
exec "$python" -P -m _gpu "$@"
