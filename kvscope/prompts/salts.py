"""Cache salts that keep an arm's blocks apart without giving up what the client's own salt keeps apart.

vLLM mixes ``cache_salt`` into a prompt's first block, so prompts with different salts share nothing. The
arm's salt comes before the client's: requests share blocks where their arms and their own salts are equal.
vLLM 0.32 takes 128 characters at most, and none of ``@``, ``/`` and the backslash.
"""

import hashlib
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

CACHE_SALT = "cache_salt"
MOST_CHARS = 128
_WHOLE, _SHORTENED = "kvscope:", "kvscope-sha:"
_WORD_CHARS = 24


class ArmSalt(NamedTuple):
    """A salt taken apart. ``client`` is what the client itself had sent, or None.

    ``shortened``: there was no room for it, and ``client`` is the SHA-256 of it, 64 hex digits.
    """

    experiment: str
    arm: str
    client: str | None
    shortened: bool = False


def arm_salt(experiment: str, arm: str) -> str:
    """Return the salt of an arm for clients that set none."""
    return f"{_WHOLE}{_word(experiment)}:{_word(arm)}"


def with_arm_salt(body: dict[str, Any], salt: str) -> dict[str, Any]:
    """Return ``body`` with an arm's salt before the client's.

    What the engine would refuse it shall refuse in its own words: then the same object comes back.
    """
    given = body.get(CACHE_SALT)
    if given is None:
        return {**body, CACHE_SALT: salt}
    if not isinstance(given, str) or not 0 < len(given) <= MOST_CHARS:
        return body
    both = f"{salt}:{given}"
    if len(both) > MOST_CHARS:
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()
        both = f"{_SHORTENED}{salt.removeprefix(_WHOLE)}:{digest}"
    return {**body, CACHE_SALT: both}


def taken_apart(salt: str) -> ArmSalt | None:
    """Return what ``with_arm_salt`` made, or None for a salt that is all the client's own."""
    for prefix in (_WHOLE, _SHORTENED):
        words = salt.removeprefix(prefix).split(":", 2)
        if salt.startswith(prefix) and len(words) > 1:
            client = words[2] if len(words) > 2 else None  # noqa: PLR2004 - behind experiment and arm
            return ArmSalt(unquote(words[0]), unquote(words[1]), client, prefix == _SHORTENED)
    return None


def _word(word: str) -> str:
    """Return a name as a salt can hold it; a long one is known by its checksum."""
    quoted = quote(word, safe="", errors="surrogatepass")
    if len(quoted) <= _WORD_CHARS:
        return quoted
    return hashlib.sha256(quoted.encode()).hexdigest()[:_WORD_CHARS]
