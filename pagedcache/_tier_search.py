"""Which tier has which of a prompt's blocks, stretch by stretch."""

from collections.abc import Sequence

from pagedcache._tier_bugs import tell_bug
from pagedcache.errors import TierError
from pagedcache.tiers import Tier

__all__ = ["TierSearch"]


class TierSearch:
    """Asks tiers in order for the leading keys behind those that came; who did not give what it has is passed over.

    Parameters
    ----------
    tiers : sequence of Tier
        The fastest first.
    keys : sequence of bytes
        Digests of consecutive blocks.

    Attributes
    ----------
    at : int
        How many of the keys came; whoever loads them counts here.
    """

    def __init__(self, tiers: Sequence[Tier], keys: Sequence[bytes]) -> None:
        self.at = 0
        self._tiers, self._keys = tiers, keys
        self._passed_over: dict[int, int] = {}  # by the tier's number: where it did not give

    def next(self) -> tuple[Tier, int] | None:
        """Return a tier and how many keys there are once it has given what it has; None where no tier has the next.

        Raises
        ------
        TierError
            No tier has it, and one could not be asked.
        """
        failed = ""
        if self.at == len(self._keys):
            return None
        for number, tier in enumerate(self._tiers):
            if self._passed_over.get(number) == self.at:
                continue
            try:
                found = tier.longest_prefix(self._keys[self.at :])
            except Exception as error:  # the others may have it
                tell_bug(tier, error)
                failed, found = f"tier {tier.name!r} fails: {error}", 0
            if found > 0:
                return tier, self.at + found
        if failed:
            raise TierError(failed)
        return None

    def pass_over(self, tier: Tier) -> None:
        """Do not ask it for the next key again."""
        self._passed_over[next(n for n, each in enumerate(self._tiers) if each is tier)] = self.at
