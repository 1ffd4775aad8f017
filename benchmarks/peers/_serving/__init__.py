"""The parts of ``serving.py``: the file and prompts that both sides get, a side per library, a process for each."""
