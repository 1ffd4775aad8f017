"""An interpreter of the PTX that NVRTC makes of the CUDA kernels: many threads at once, as lanes of NumPy arrays.

It runs what a GPU would be given, and says where a kernel leaves its memory, reads what nobody wrote, has threads wait
for each other in vain, or lacks a barrier between accesses to shared memory. It says nothing of speed, and nothing of
races in global memory, as all threads take the same steps.
"""

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Region
from pagedcache.backends.cuda_emulated.ptx._program import PtxProgram

__all__ = ["PtxFault", "PtxProgram", "Region"]
