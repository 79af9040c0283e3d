"""Statistics that add, intervals that may be looked at any time, checks of the sample ratio."""
