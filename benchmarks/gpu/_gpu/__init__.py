"""What one command measures on a GPU; see benchmarks/README.md."""
