"""Backend ``cpu``: attention in native SIMD kernels, chosen at import by what the processor has."""

from pagedcache.backends.cpu._backend import CpuBackend

__all__ = ["CpuBackend"]
