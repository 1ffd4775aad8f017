"""All the checks in one class."""

from pagedcache.testing._attention_checks import AttentionChecks
from pagedcache.testing._refusal_checks import RefusalChecks
from pagedcache.testing._stability_checks import StabilityChecks
from pagedcache.testing._storage_checks import StorageChecks

__all__ = ["BackendConformance"]


class BackendConformance(AttentionChecks, StabilityChecks, StorageChecks, RefusalChecks):
    """Tests of one backend: override the fixture `backend`, which has to return an instance."""
