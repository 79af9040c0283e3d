"""Cache salts that keep an arm's blocks apart without giving up what the client's own salt keeps apart.

vLLM mixes ``cache_salt`` into a prompt's first block, so prompts with different salts share nothing. The
arm's salt comes before the client's: requests share blocks where their arms and their own salts are equal.
"""

from typing import Any, NamedTuple
from urllib.parse import quote, unquote

CACHE_SALT = "cache_salt"
_PREFIX = "kvscope:"
_CLIENT = "/"


class ArmSalt(NamedTuple):
    """A salt taken apart; ``client`` is what the client itself had sent, or None."""

    experiment: str
    arm: str
    client: str | None


def arm_salt(experiment: str, arm: str) -> str:
    """Return the salt of an arm for clients that set none."""
    return f"{_PREFIX}{quote(experiment, safe='')}:{quote(arm, safe='')}"


def with_arm_salt(body: dict[str, Any], salt: str) -> dict[str, Any]:
    """Return ``body`` with an arm's salt before the client's; the same object where that one is no text."""
    given = body.get(CACHE_SALT)
    if given is None:
        return {**body, CACHE_SALT: salt}
    if not isinstance(given, str) or not given:
        return body  # the engine refuses it, in its own words
    return {**body, CACHE_SALT: f"{salt}{_CLIENT}{given}"}


def taken_apart(salt: str) -> ArmSalt | None:
    """Return what ``with_arm_salt`` made, or None for a salt that is all the client's own."""
    own, slash, client = salt.partition(_CLIENT)
    words = own.removeprefix(_PREFIX).split(":")
    if not own.startswith(_PREFIX) or len(words) != 2:  # noqa: PLR2004 - experiment and arm
        return None
    return ArmSalt(unquote(words[0]), unquote(words[1]), client if slash else None)
