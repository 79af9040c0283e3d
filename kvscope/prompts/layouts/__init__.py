"""Prompt layouts that an application declares: read, checked, compiled once, rendered for each request."""
