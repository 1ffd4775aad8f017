"""Whether an installed wheel works, in a second or two and with NumPy alone: for every wheel that is built.

Usage: python -P .ci/smoke.py        (anywhere but in the source tree)
"""

import sys
import sysconfig
import threading
from importlib import metadata

import numpy as np

import pagedcache
from pagedcache.backends.cpu import _native


def attended(backend: str) -> np.ndarray:
    """Two layers of a batch that shares blocks, in every storage type, by the backend of this name."""
    results = []
    for dtype in ("float32", "float16", "bfloat16", "int8", "float8_e4m3"):
        rng = np.random.default_rng(1)
        spec = pagedcache.CacheSpec(layers=2, kv_heads=2, head_dim=32, dtype=dtype, block_size=8)
        with pagedcache.KVCache(spec, num_blocks=32, backend=backend) as cache:
            prompt = rng.integers(0, 1000, 30)
            ids = cache.admit([prompt]).ids
            for count in (30, 3, 1):
                step = cache.extend(ids, count)
                for layer in range(2):
                    q, k, v = (
                        rng.standard_normal((len(ids) * count, heads, 32), np.float32).astype(np.float16).astype("f4")
                        for heads in (8, 2, 2)
                    )
                    results.append(np.array(cache.attend(layer, q, k, v, step), np.float32))
                cache.commit(step, prompt if count == 30 else np.full(len(ids) * count, 7))
                ids = np.concatenate([ids, cache.fork(ids)[0]])
            assert cache.match([prompt])[0] == 29, "the prompt is not found"
            cache.check()
    return np.concatenate([result.ravel() for result in results])


def main() -> None:
    """Raise where something is wrong; else say what was tried."""
    assert pagedcache.__version__ == metadata.version("pagedcache"), "not the version that is installed"
    assert threading.active_count() == 1, "the import has started a thread"
    assert {"cpu", "numpy"} <= set(pagedcache.backends.names()), "entry points are missing"
    expected = attended("numpy")
    for name in _native.supported():
        _native.use(name)
        worst = float(np.abs(attended("cpu") - expected).max())
        limit = 0.02 if name == "avx512bf16" else 1e-5  # whose products are of bfloat16
        assert worst < limit, f"{name} differs from NumPy by {worst}"
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert not (free and sys._is_gil_enabled()), "a module has brought the GIL back"
    names = ", ".join(_native.supported())
    print(
        f"pagedcache {pagedcache.__version__}, Python {sys.version.split()[0]}, NumPy {np.__version__}: {names}", end=""
    )
    print(", without the GIL" if free else "")


if __name__ == "__main__":
    main()
