"""The words of kvscope as frozen dataclasses; standard library only.

Units are in the names: ``_seconds`` (float), ``_at`` (Unix seconds, UTC), ``_tokens``, ``_blocks``,
``_bytes``, ``_rate`` (0 to 1). ``None`` means that no source told the value; it is never a zero.
"""
