class EvictionPolicy:
    num_levels: int
    nbytes: int

class LRU(EvictionPolicy): ...
