"""Suites of the pagedcache benchmarks: one module per subject, run by asv (see ../README.md)."""
