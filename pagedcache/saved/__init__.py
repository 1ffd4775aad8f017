"""Files that hold sequences, or a whole prefix cache: their bytes, and bytes of one dtype as those of another."""
