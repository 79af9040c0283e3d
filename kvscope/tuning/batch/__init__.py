"""Offline batches in an order in which requests find the prefixes of those before them in the cache."""
