"""The memory layout of DLPack 1.x, which libraries pass to each other in capsules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    CPU = 1                 # device_type: the host's memory
    CUDA_HOST = 3           # the host's too: pinned by CUDA
    ROCM_HOST = 11          # and by ROCm
    READ_ONLY = 1           # flags
    IS_COPIED = 2
    MAJOR = 1
    MINOR = 1

cdef struct Device:
    int32_t device_type
    int32_t device_id

cdef struct DataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct Tensor:
    void *data
    Device device
    int32_t ndim
    DataType dtype
    int64_t *shape          # [ndim]
    int64_t *strides        # [ndim], in items; or NULL: compact
    uint64_t byte_offset    # of the first item from data

cdef struct Plain:
    Tensor tensor
    void *owner
    void (*deleter)(Plain *) noexcept nogil

cdef struct Version:
    uint32_t major
    uint32_t minor

cdef struct Versioned:
    Version version
    void *owner
    void (*deleter)(Versioned *) noexcept nogil
    uint64_t flags
    Tensor tensor
