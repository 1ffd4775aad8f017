"""What becomes of errors that a tier should not raise."""

import warnings

from pagedcache.tiers import Tier

__all__ = ["tell_bug"]


def tell_bug(tier: Tier, error: Exception) -> None:
    """Warn of an error that is not the medium's (OSError). It counts as one all the same: generation goes on."""
    if not isinstance(error, OSError):
        warnings.warn(
            f"tier {tier.name!r} has a bug; what it should have done is left out: {error!r}",
            RuntimeWarning,
            stacklevel=3,
        )
