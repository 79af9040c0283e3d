"""vLLM's prefix cache as a model: block hashes, the block pool, the index of what is cached."""
