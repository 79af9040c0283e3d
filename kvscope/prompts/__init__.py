"""Prompts: routes, segments, kinds of value, entropy, tokens and layout transforms."""
