"""What the results say: times, rates and ratios of one cell, and means over cells."""

from math import exp, log
from statistics import median


class Figures:
    """The results of one cell as `driver` returns them; `by` is "median" or "min"."""

    def __init__(self, entry, by="median"):
        self.entry, self.by = entry, by
        self.cell = entry["cell"]
        self.heads = "/".join(map(str, self.cell["heads"]))
        self.group, self.dtype, self.name = (self.cell[field] for field in ("group", "dtype", "name"))
        self.label = f"{self.heads} {self.dtype} {self.name}"
        self.sides = entry["sides"]
        self.kv_bytes = entry["kv_bytes"]

    def us(self, side=None):
        """Microseconds per call of a side, by default ours; None where it was not measured."""
        found = self.sides.get(side or self.entry["ours"])
        return found and found[f"{self.by}_us"]

    def families(self):
        """Other libraries and other sides of ours, in the order in which they were measured; see `best`."""
        own = self.entry["ours"]
        return list(dict.fromkeys(family(name) for name in self.sides if name != own))

    def best(self, *families):
        """The fastest side of these families, and its time; None where none was measured."""
        others = [name for name in self.sides if name != self.entry["ours"] and family(name) in families]
        return min(((self.us(name), name) for name in others), default=None)

    def ratio(self, *families):
        """How many times faster we are than the best of these families; None where either is lacking."""
        best = self.best(*families)
        return best and self.us() and best[0] / self.us()

    @property
    def gbps(self):
        """GB/s of K and V read (in group "append": written) once."""
        return self.us() and self.kv_bytes / self.us() / 1e3

    @property
    def gflops(self):
        return self.us() and self.entry["flops"] / self.us() / 1e3

    @property
    def fraction(self):
        """K and V per second over the read bandwidth of the same round; the median of the rounds."""
        ours = self.sides.get(self.entry["ours"])
        if not ours or not self.entry["read"]:
            return None
        pairs = zip(ours["rounds_us"], self.entry["read"], strict=False)
        return median(self.kv_bytes / (us * 1e-6) / read for us, read in pairs)


def family(name):
    """A library's name without its variant; sides of ours are families of their own."""
    return name if name.startswith(("pagedcache", "memcpy")) else name.split(" ")[0]


def geometric_mean(numbers):
    """The mean of what is there; None where nothing is."""
    logs = [log(number) for number in numbers if number]
    return exp(sum(logs) / len(logs)) if logs else None
