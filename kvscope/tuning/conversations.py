"""Conversations whose history does not stay: cut from the front turn by turn, or written anew.

A turn whose history goes on with the last one's finds all of it in the cache. One whose first message fell
away shares nothing with it behind the system message.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.segments import CHAT
from kvscope.tuning.effects import Effect
from kvscope.tuning.rule import Operation, Traffic, told
from kvscope.tuning.structure import LEADING_ROLES
from kvscope.tuning.window import RouteWindow

STABLE_HISTORY = "stable_history"
_OFTEN = 1 / 3


@dataclasses.dataclass(slots=True)
class _Turn:
    """One request of a conversation; ``start`` is the place of its history's first message in the whole.

    ``pinned`` messages at the front stay when later ones are cut.
    """

    position: int
    leading: list[Any]
    history: list[Any]
    keys: tuple[int, ...]
    start: int = 0
    pinned: int = 0


@dataclasses.dataclass(slots=True)
class _Conversation:
    """The turns of one conversation, and what was ever said in it, as it was said first."""

    turns: list[_Turn] = dataclasses.field(default_factory=list)
    messages: list[Any] = dataclasses.field(default_factory=list)  # by place, as first sent
    cut: int = 0  # turns whose history begins later than the one's before
    since_cut: int = 0  # turns from the first of these on
    rewritten: int = 0  # turns with a message that was sent in another form before


def stable_history(traffic: Traffic) -> Iterator[Operation]:
    """Suggest to cut history in larger steps, or to send each message as it was sent first."""
    for route in traffic.routes:
        conversations = list(_conversations(route, traffic.window.prompts))
        cut = sum(each.cut for each in conversations)
        rewritten = sum(each.rewritten for each in conversations)
        # who cuts in large steps does so at few turns
        if cut > _OFTEN * sum(each.since_cut for each in conversations):
            yield from _larger_steps(traffic, route, conversations, cut)
        if rewritten:
            yield from _as_first_sent(traffic, route, conversations, rewritten)


def _larger_steps(
    traffic: Traffic, route: RouteWindow, conversations: Sequence[_Conversation], cut: int
) -> Iterator[Operation]:
    longest = max(len(turn.history) for each in conversations if each.cut for turn in each.turns)
    best: tuple[Effect, int] | None = None
    for step in sorted({max(2, longest // parts // 2 * 2) for parts in (1, 2, 4)}):
        bodies = {
            turn.position: _body(traffic, turn, _from_step(each, turn, step))
            for each in conversations
            for turn in each.turns
            if turn.start % step
        }
        effect = Effect(traffic.judge.now, traffic.judge.rewritten(bodies), route)
        # longer prompts hit more of themselves: only tokens that need no computing count
        enough = effect.least_gain >= traffic.min_gain and effect.saved > 0
        if enough and (best is None or effect.saved > best[0].saved):
            best = effect, step
    if best is not None:
        effect, step = best
        yield _operation(traffic, effect, {"drop_messages": step}, "truncated", cut)


def _as_first_sent(
    traffic: Traffic, route: RouteWindow, conversations: Sequence[_Conversation], rewritten: int
) -> Iterator[Operation]:
    bodies = {}
    for each in conversations:
        for turn in each.turns:
            first = _as_first(each, turn)
            if first != turn.history:
                bodies[turn.position] = _body(traffic, turn, first)
    effect = Effect(traffic.judge.now, traffic.judge.rewritten(bodies), route)
    if effect.least_gain >= traffic.min_gain and effect.saved > 0:
        yield _operation(traffic, effect, {"append_only": True}, "rewritten", rewritten)


def _operation(
    traffic: Traffic, effect: Effect, change: Mapping[str, Any], fault: str, turns: int
) -> Operation:
    positions = effect.route.positions
    return Operation(
        kind=STABLE_HISTORY,
        effect=effect,
        change={"history": dict(change)},
        evidence=told(effect, traffic.window)
        | {
            "history": fault,
            "turns_at_fault": turns,
            "mean_prompt_tokens_before": _mean(effect.before.prompt_tokens, positions),
            "mean_prompt_tokens_after": _mean(effect.after.prompt_tokens, positions),
        },
        risk=Risk.QUALITY,
    )


def _mean(tokens: Sequence[int], positions: Sequence[int]) -> float:
    return sum(tokens[at] for at in positions) / len(positions)


def _body(traffic: Traffic, turn: _Turn, history: Sequence[Any]) -> dict[str, Any]:
    return {
        **traffic.window.prompts[turn.position].sent_body,
        "messages": [*turn.leading, *history],
    }


def _from_step(conversation: _Conversation, turn: _Turn, step: int) -> list[Any]:
    """Return the turn's history with the messages that would not yet have been cut."""
    pinned = turn.pinned
    kept = conversation.messages[pinned + turn.start // step * step : pinned + turn.start]
    return [*turn.history[:pinned], *kept, *turn.history[pinned:]]


def _as_first(conversation: _Conversation, turn: _Turn) -> list[Any]:
    """Return the turn's history with each message in the form in which it was sent first."""
    pinned = turn.pinned
    return [conversation.messages[at if at < pinned else at + turn.start] for at in range(len(turn.history))]


def _conversations(route: RouteWindow, prompts: Sequence[Prompt]) -> Iterator[_Conversation]:
    """Yield the conversations: those that the log names, else turns that hold the last one's last message."""
    named: dict[str, _Conversation] = {}
    last: dict[int, _Conversation] = {}
    found: list[_Conversation] = []
    for at in route.positions:
        turn = _turn(at, prompts[at])
        if turn is None or not turn.history:
            continue
        session = prompts[at].session
        if session is not None:
            conversation = named.get(session)
        else:
            conversation = next((last[key] for key in reversed(turn.keys[:-1]) if key in last), None)
        if conversation is None or not _goes_on(conversation, turn):
            conversation = _Conversation([turn], list(turn.history))
            found.append(conversation)
        if session is not None:
            named[session] = conversation
        last[turn.keys[-1]] = conversation
    return iter(found)


def _turn(position: int, prompt: Prompt) -> _Turn | None:
    messages = prompt.sent_body.get("messages")
    if prompt.api != CHAT or not isinstance(messages, list):
        return None
    if not all(isinstance(message, dict) for message in messages):
        return None
    head = next(
        (at for at, message in enumerate(messages) if message.get("role") not in LEADING_ROLES), len(messages)
    )
    history = messages[head:]
    return _Turn(position, messages[:head], history, tuple(map(_key, history)))


def _key(message: Mapping[str, Any]) -> int:
    return hash(json.dumps([message.get("role"), message.get("content"), message.get("tool_calls")]))


def _goes_on(conversation: _Conversation, turn: _Turn) -> bool:
    """Add ``turn`` to the conversation, if it goes on with it; tell whether it does."""
    last = conversation.turns[-1]
    same = _same(last.keys, turn.keys)
    if same == len(last.keys) or same == len(turn.keys):
        turn.start, turn.pinned = last.start, last.pinned  # longer, or the same turn again
    elif (dropped := _dropped(last.keys, turn.keys, same)) is not None:
        turn.start, turn.pinned = last.start + dropped, same
        if last.start and last.pinned != same:
            return False  # another way to cut: what stood where is not known any more
        conversation.cut += 1
    elif _in_step(last, turn):
        turn.start, turn.pinned = last.start, last.pinned
        conversation.rewritten += 1
    else:
        return False
    conversation.since_cut += bool(conversation.cut)
    whole = turn.start + len(turn.history)
    known = len(conversation.messages)
    if whole > known:
        conversation.messages += turn.history[known - whole :]
    conversation.turns.append(turn)
    return True


def _same(first: Sequence[int], second: Sequence[int]) -> int:
    count = min(len(first), len(second))
    return next((at for at in range(count) if first[at] != second[at]), count)


def _dropped(last: Sequence[int], now: Sequence[int], same: int) -> int | None:
    """Return how many messages behind the first ``same`` fell away, None where that is not what happened."""
    for dropped in range(1, len(last) - same):
        rest = last[same + dropped :]
        if tuple(now[same : same + len(rest)]) == tuple(rest):
            return dropped
    return None


def _in_step(last: _Turn, now: _Turn) -> bool:
    """Whether the roles of the last turn's messages come again, and at least one message as it was.

    A history of one message that reads differently is another conversation.
    """
    if len(now.history) <= len(last.history):
        return False
    roles = [message.get("role") for message in last.history]
    if roles != [message.get("role") for message in now.history[: len(roles)]]:
        return False
    return len(roles) == 1 or any(key in last.keys for key in now.keys[: len(roles)])
