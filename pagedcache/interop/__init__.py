"""Adapters for frameworks; importing this package imports none of them."""
