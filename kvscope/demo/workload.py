"""Makes up the demo's traffic: four routes in sessions, the same mix in every phase, new texts each time.

Two routes are at fault on purpose: `support` has a clock and a request id above a long stable prompt, `agent`
sends its tools in another order each time. `search` and `chat` are well behaved. `search` does not say its
route, so that kvscope has to find it.
"""

import dataclasses
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kvscope.demo import texts
from kvscope.demo.model import MODEL_NAME
from kvscope.demo.tools import AGENT_TOOLS

ROUTE_HEADER = "X-Kvscope-Route"
SESSION_HEADER = "x-session-id"
TUNED_ROUTE = "support"
_FIRST_CLOCK_AT = datetime(2026, 11, 29, 9, 0, tzinfo=UTC).timestamp()

# One round of sessions: (route, turns). Every phase is a number of rounds, so phases differ in their texts
# alone and their hit rates can be compared.
_ROUND: tuple[tuple[str, int], ...] = (
    ("support", 2), ("chat", 4), ("support", 4), ("search", 1), ("agent", 4), ("support", 3),
    ("search", 1), ("support", 2), ("search", 1), ("chat", 3), ("support", 4), ("search", 1),
    ("agent", 3), ("support", 3), ("search", 1), ("search", 1),
)  # fmt: skip
SESSIONS_PER_ROUND = len(_ROUND)
REQUESTS_PER_ROUND = sum(turns for _, turns in _ROUND)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One conversation: what the user says turn by turn, and the seed of all that varies beside it."""

    id: str
    route: str
    turns: tuple[str, ...]
    seed: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request to the gateway."""

    headers: Mapping[str, str]
    body: Mapping[str, Any]


class Workload:
    """An endless, seeded row of sessions; two of the same seed and phase are equal."""

    def __init__(self, *, seed: int, phase: str, model: str = MODEL_NAME) -> None:
        self._model = model
        self._seed = f"{seed}/{phase}"
        self._documents = texts.documents()
        self._support = texts.support_system()

    def sessions(self, rounds: int | None = None) -> Iterator[Session]:
        """Yield the sessions of ``rounds`` rounds, or without end."""
        number = 0
        while rounds is None or number < rounds * SESSIONS_PER_ROUND:
            route, turns = _ROUND[number % SESSIONS_PER_ROUND]
            seed = f"{self._seed}/{number}"
            rng = random.Random(seed)  # noqa: S311 - made-up traffic, no secret
            yield Session(
                id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                route=route,
                turns=tuple(self._say(rng, route, turn) for turn in range(turns)),
                seed=seed,
            )
            number += 1

    def call(self, session: Session, turn: int, replies: Sequence[str], *, sent: int) -> Call:
        """Return the request of turn ``turn`` after the answers before it; ``sent`` moves the clock."""
        rng = random.Random(f"{session.seed}/turn {turn}")  # noqa: S311 - made-up traffic, no secret
        messages: list[dict[str, str]] = [{"role": "system", "content": self._system(rng, session, sent)}]
        for said, reply in zip(session.turns[:turn], replies, strict=True):
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]
        messages.append({"role": "user", "content": session.turns[turn]})
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": rng.choice((8, 12, 16)),
            "temperature": 0.0,
        }
        if session.route == "agent":
            body["tools"] = rng.sample(AGENT_TOOLS, len(AGENT_TOOLS))
        if rng.random() < 0.8:  # noqa: PLR2004 - the share of clients that stream
            body["stream"] = True
            if rng.random() < 0.5:  # noqa: PLR2004 - of these, the share that asks for usage
                body["stream_options"] = {"include_usage": True}
        headers = {SESSION_HEADER: session.id}
        if session.route != "search":
            headers[ROUTE_HEADER] = session.route
        return Call(headers=headers, body=body)

    def _system(self, rng: random.Random, session: Session, sent: int) -> str:
        if session.route == "support":
            now = datetime.fromtimestamp(_FIRST_CLOCK_AT + 7 * sent, UTC)
            request = uuid.UUID(int=rng.getrandbits(128), version=4)
            return f"Current time: {now:%Y-%m-%d %H:%M:%S} UTC\nRequest id: {request}\n{self._support}"
        return {"agent": texts.AGENT_SYSTEM, "search": texts.SEARCH_SYSTEM, "chat": texts.CHAT_SYSTEM}[
            session.route
        ]

    def _say(self, rng: random.Random, route: str, turn: int) -> str:
        if route == "search":
            passages = "\n".join(rng.sample(self._documents, 4))
            subject = rng.choice(texts.SUBJECTS)
            return f"Passages\n{passages}\nQuestion: what does the handbook say about {subject}?"
        if route == "agent" and turn > 0:
            values = " ".join(f"{rng.random() * 100:.1f}" for _ in range(12))
            return f"Result: {rng.choice(('ok', 'ok', 'partial'))}\nlast values {values}"
        first = (
            rng.choice(texts.FOLLOW_UPS)
            if turn
            else rng.choice(texts.OPENINGS).format(rng.choice(texts.SUBJECTS))
        )
        return " ".join([first, *rng.sample(texts.DETAILS, 3)])
