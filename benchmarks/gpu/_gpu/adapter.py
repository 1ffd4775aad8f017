"""A backend on a GPU for whom has NumPy arrays, as the conformance suite does; it waits for every result."""

import weakref

import numpy as np

from pagedcache.backends.host.formats import as_bits
from pagedcache.backends.host.storage import HostStorage


class HostArrays:
    """The device's backend, with arguments and results in the host's memory.

    Pools are in memory that the host sees too, so that what `view` and `export` return is the pool itself.
    """

    def __init__(self, device):
        self._device, self._own = device, device.backend
        self.name, self.device, self.capabilities = self._own.name, self._own.device, self._own.capabilities
        self.merge, self.fence = self._merge, self._own.fence
        self._storages = weakref.WeakSet()

    def allocate(self, spec, num_blocks, buffers=None):
        storage = HostArrayStorage(self._device, spec, num_blocks, buffers)
        self._storages.add(storage)
        return storage

    def write(self, storage, layer, k, v, slots):
        self._own.write(storage.own, layer, k, v, slots)

    def attend(self, storage, layer, q, step, **options):
        return self._with_outputs(q, options, lambda given: self._own.attend(storage.own, layer, q, step, **given))

    def check_attend(self, storage, layer, q, step, **options):
        self._own.check_attend(storage.own, layer, q, step, **self._on_device(options))

    def write_and_attend(self, storage, layer, q, k, v, step, **options):
        return self._with_outputs(
            q, options, lambda given: self._own.write_and_attend(storage.own, layer, q, k, v, step, **given)
        )

    def _merge(self, outs, lses):
        return tuple(map(self._device.host, self._own.merge(outs, lses)))

    def copy_blocks(self, storage, pairs):
        self._own.copy_blocks(storage.own, pairs)

    def copy_slots(self, storage, src, dst):
        self._own.copy_slots(storage.own, src, dst)

    def read_blocks(self, storage, ids, layers=None, into=None):
        return self._own.read_blocks(storage.own, ids, layers, into)

    def write_blocks(self, storage, ids, data, layers=None):
        self._own.write_blocks(storage.own, ids, data, layers)

    def synchronize(self):
        self._own.synchronize()
        self._device.synchronize()
        for storage in self._storages:
            storage.give_back()

    def _on_device(self, options):
        """The same options, `out` and `lse` on the device."""
        given = dict(options)
        for name in ("out", "lse"):
            array = given.get(name)
            if isinstance(array, np.ndarray):
                if not array.flags.writeable:
                    raise ValueError(f"{name} is {array.dtype} {array.shape} (read-only); it must be a writable array")
                given[name] = self._device.put(as_bits(array))
        return given

    def _with_outputs(self, q, options, call):
        given = self._on_device(options)
        result = call(given)
        for name in ("out", "lse"):
            if options.get(name) is not None:
                as_bits(options[name])[...] = self._device.host(as_bits(given[name]))
        if options.get("out") is not None:
            return options["out"]
        found, dtype = self._device.host(result), getattr(q, "dtype", None)
        # On the device there are only the bits of types that NumPy has not.
        return found.view(dtype) if isinstance(dtype, np.dtype) and dtype.kind == "V" else found


class HostArrayStorage:
    """A storage whose arrays are NumPy's."""

    def __init__(self, device, spec, num_blocks, buffers):
        self._device, self.spec, self.num_blocks = device, spec, num_blocks
        self._pairs = []  # arrays of the caller's, and those that stand for them
        with device.visible():
            self.own = device.backend.allocate(spec, num_blocks, self._taken(buffers))
        self.nbytes = self.own.nbytes

    def _taken(self, buffers):
        if buffers is None:
            return None
        HostStorage(
            self.spec, self.num_blocks, buffers
        )  # raises what is wrong with them, and clears the reserved block
        arrays = [[self._device.put(as_bits(array)) for array in plane] for plane in buffers]
        self._pairs = [pair for both in zip(buffers, arrays, strict=True) for pair in zip(*both, strict=True)]
        return arrays

    def give_back(self):
        """Let the caller's arrays hold what those that stand for them do."""
        for array, own in self._pairs:
            as_bits(array)[...] = self._device.host(own)

    def view(self, layer):
        return tuple(self._shown(array, True) for array in self.own.view(layer))

    def scales(self, layer):
        scales = self.own.scales(layer)
        return scales and tuple(self._shown(array, True) for array in scales)

    def export(self, writable=False):
        return [tuple(self._shown(array, writable) for array in plane) for plane in self.own.export(writable)]

    def rebind(self, buffers):
        if self._pairs:
            self.give_back()
        with self._device.visible():
            self.own.rebind(self._taken(buffers))

    def close(self):
        self.own.close()

    def _shown(self, array, writable):
        shown = self._device.view(array, writable)
        return shown if shown.ndim < 4 else shown.view(self.spec.storage_dtype)
