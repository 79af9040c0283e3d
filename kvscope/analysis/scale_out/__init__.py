"""Many caches replayed on many files: a grid of cells, in this process or on a Ray cluster."""
