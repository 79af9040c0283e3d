"""Request ids: one request has one id, whatever its engine puts around it."""

import re

_COMPLETION = re.compile(r"cmpl-(?P<id>.+)-\d+\Z", re.DOTALL)


def request_id_of_engine(engine_id: str) -> str:
    """Return the ``X-Request-Id`` inside an id that an engine's span or statistics carry.

    vLLM 0.32 (executed): ``chatcmpl-<id>`` for chat, ``cmpl-<id>-<index of the prompt>`` for completions.
    Other ids are returned as they are.
    """
    if engine_id.startswith("chatcmpl-"):
        return engine_id.removeprefix("chatcmpl-") or engine_id
    if match := _COMPLETION.match(engine_id):
        return match["id"]
    return request_id_of_response(engine_id)


def request_id_of_response(response_id: str) -> str:
    """Return the ``X-Request-Id`` inside the ``id`` of a response body.

    A body's completion id has no index of the prompt, and an id may itself end in digits, so the two
    forms cannot be told apart by looking at them.
    """
    for prefix in ("chatcmpl-", "cmpl-"):
        if response_id.startswith(prefix):
            return response_id.removeprefix(prefix) or response_id
    return response_id
