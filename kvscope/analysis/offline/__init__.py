"""The cache replayed on files of requests: what they would have hit, at one capacity or at all."""
