"""Logs and traces of requests as files: one module a format, told by content, read as a stream."""
