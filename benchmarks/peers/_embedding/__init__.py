"""The parts of ``embedding_calls.py``: what is measured, and a side for the kernel and each framework."""
