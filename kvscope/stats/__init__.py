"""Statistics that add and may be looked at at any time."""
