"""The parts of ``attention.py``: cells, data, the probe, one file per peer, the driver that lets them take turns."""
