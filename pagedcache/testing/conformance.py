"""All the checks in one class."""

from pagedcache.testing._attention_checks import AttentionChecks
from pagedcache.testing._cascade_checks import CascadeChecks
from pagedcache.testing._optional_checks import OptionalChecks
from pagedcache.testing._quantised_checks import QuantisedChecks
from pagedcache.testing._refusal_checks import RefusalChecks
from pagedcache.testing._stability_checks import StabilityChecks
from pagedcache.testing._storage_checks import StorageChecks
from pagedcache.testing._variant_checks import VariantChecks
from pagedcache.testing._variant_refusal_checks import VariantRefusalChecks

__all__ = ["BackendConformance"]


class BackendConformance(
    AttentionChecks,
    VariantChecks,
    CascadeChecks,
    StabilityChecks,
    StorageChecks,
    QuantisedChecks,
    RefusalChecks,
    VariantRefusalChecks,
    OptionalChecks,
):
    """Tests of one backend: override the fixture `backend`, which has to return an instance."""
