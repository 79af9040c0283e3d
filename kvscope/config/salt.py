"""The salt of stored and exported block hashes: from the environment, else a file of this machine's own."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kvscope.config.load import HASH_SALT, data_directory
from kvscope.errors import ConfigError

_BYTES = 32
_MOST_BYTES = 64


def hash_salt() -> bytes:
    """Return the salt; where there is none it is made at random and kept in the data directory.

    It lies beside no store: who has a store's hashes alone cannot try out texts. Raises ``ConfigError`` for
    one that is too long, and where it cannot be kept.
    """
    given = os.environ.get(HASH_SALT)
    if given is not None:
        salt = given.encode("utf-8", "surrogateescape")
        if not 0 < len(salt) <= _MOST_BYTES:
            raise ConfigError(f"{HASH_SALT} must have 1 to {_MOST_BYTES} bytes, not {len(salt)}")
        return salt
    file = data_directory() / "hash-salt"
    try:
        return _kept(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be kept: {error.strerror or error}; set {HASH_SALT}") from error


def _kept(file: Path) -> bytes:
    with suppress(FileNotFoundError):
        return _checked(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    with suppress(FileExistsError):
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(secrets.token_bytes(_BYTES))
        try:
            os.link(made, file)  # of two that begin at once, one file stays
        finally:
            made.unlink()
    return _checked(file)


def _checked(file: Path) -> bytes:
    salt = file.read_bytes()
    if len(salt) != _BYTES:
        raise ConfigError(f"{file} holds no salt of {_BYTES} bytes: remove it, and a new one is made")
    return salt
