"""What `test_cuda_mutants` runs in a process of its own, with a sanitizer loaded before everything else."""

import sys

from battery import SMALL, EmulatedBackend
from mutants import MUTANTS

from pagedcache.backends.cuda import _kernels

if __name__ == "__main__":
    sanitize, cases, *names = sys.argv[1:]
    read = _kernels._text
    for mutant in MUTANTS:
        if mutant.name in names:
            text = mutant.edited(read(mutant.file))
            _kernels._text = lambda name, file=mutant.file, text=text: text if name == file else read(name)
    for case in cases.split(","):
        SMALL[case](EmulatedBackend(sanitize=sanitize))
    print("all well")
