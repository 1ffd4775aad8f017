"""Replays of the traces that come with the package: prefixes through the index, memory through tables and pool."""


class Prefix:
    """800 requests, 18,882 blocks, at one capacity."""

    params = [["lru", "lfu-da", "arc", "s3-fifo", "never-hit-first", "priority-ttl", "belady"]]
    param_names = ["policy"]

    def setup(self, policy):
        from pagedcache.replay import shipped_trace

        self.trace = shipped_trace("mooncake-synthetic")

    def time_hits(self, policy):
        from pagedcache.replay import prefix_hits

        prefix_hits(self.trace, 5859, policy)

    def track_token_hit_rate(self, policy):
        from pagedcache.replay import replay_prefix

        return replay_prefix(self.trace, [5859], [policy])[0].token_rate

    track_token_hit_rate.unit = "ratio"


class Memory:
    """1000 ShareGPT requests in 12 GiB for OPT-13B: some 5,000 steps of 37 sequences where pages are used."""

    params = [["Orca-Max", "Orca-Oracle", "Oracle, first fit", "paged-16"]]
    param_names = ["system"]
    number = 1
    rounds = 1
    repeat = (3, 10, 10.0)

    def setup(self, system):
        from pagedcache.replay import shipped_trace

        self.trace = shipped_trace("sharegpt").select(1000, max_length=2048, seed=0)

    def _usage(self, system):
        from pagedcache.replay import replay_memory

        paged = system == "paged-16"
        return replay_memory(
            self.trace, 15_728, 2048, contiguous=[] if paged else [system], block_sizes=[16] if paged else []
        )[0]

    def time_replay(self, system):
        self._usage(system)

    def track_stored(self, system):
        return self._usage(system).stored

    track_stored.unit = "ratio"
