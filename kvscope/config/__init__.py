"""Composes the parts' settings from flags, environment and file; the only reader of the environment."""
