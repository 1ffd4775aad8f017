"""Prefill: one prompt, causal, as a rate of the floating-point operations that are needed."""

from _gpu.cases import chosen, prefills
from _gpu.decode import measured


def rows(device, shrink):
    for case in chosen(prefills(), shrink):
        yield measured(device, case)
