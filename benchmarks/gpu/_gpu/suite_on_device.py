"""The suite of all backends on the device that $PAGEDCACHE_GPU_DEVICE names; `conformance` runs it."""

import os

import pytest

from _gpu.adapter import HostArrays
from _gpu.device import DEVICES
from pagedcache.testing import BackendConformance

BACKEND = HostArrays(DEVICES[os.environ["PAGEDCACHE_GPU_DEVICE"]]())


class TestOnDevice(BackendConformance):
    @pytest.fixture
    def backend(self):
        return BACKEND
