"""A request before it is written: its parts by name, so that faults can be planted in each."""

import dataclasses
import random
from typing import Any

from _faults_texts import Texts

from kvscope.model.prompt import Prompt

MODEL = "m"


@dataclasses.dataclass(slots=True, kw_only=True)
class Draft:
    """One request; times are Unix seconds."""

    number: int
    at: float
    session: str
    question: str
    head: list[str] = dataclasses.field(default_factory=list)  # first lines of the system message
    rules: list[str]
    settings: str = ""  # JSON in the system message
    examples: list[str] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    documents: list[str] = dataclasses.field(default_factory=list)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    image: str | None = None
    tenant: str | None = None
    salt: str | None = None
    engine: str = "e0"
    route: str = "r"

    def prompt(self) -> Prompt:
        """Return the request as a log has it."""
        body = self.body()
        return Prompt(
            request_id=f"q{self.number}",
            api="chat",
            route=self.route,
            arrived_at=self.at,
            body=body,
            sent_body=body,
            engine=self.engine,
            session=self.session,
            tenant=self.tenant,
        )

    def body(self) -> dict[str, Any]:
        """Return the chat body."""
        system = "\n".join([*self.head, *self.rules, *([self.settings] if self.settings else [])])
        if self.examples:
            system = "\n\n".join([system, *self.examples])
        told = [f"<document>\n{text}\n</document>" for text in self.documents]
        content: Any = "\n".join([*told, self.question])
        if self.image:
            image = {"type": "image_url", "image_url": {"url": self.image}}
            content = [image, {"type": "text", "text": content}]
        messages = [{"role": "system", "content": system}] if system else []
        body: dict[str, Any] = {"model": MODEL, "messages": [*messages, *self.history]}
        body["messages"].append({"role": "user", "content": content})
        if self.tools:
            body["tools"] = self.tools
        if self.salt:
            body["cache_salt"] = self.salt
        return body


FAMILIES = ("chat", "tools", "rag", "agent")
START = 1_796_000_000.0


def drafts(family: str, rng: random.Random, texts: Texts, *, count: int) -> list[Draft]:
    """Return the clean requests of one application, in order of arrival."""
    rules = rng.sample(texts.sentences, min(len(texts.sentences), 26))
    tools = rng.sample(texts.tools, 7) if family in ("tools", "agent") else []
    shelf = rng.sample(texts.documents, 5) if family == "rag" else []
    found: list[Draft] = []
    at = START + rng.uniform(0, 80_000)
    talks: dict[str, list[dict[str, Any]]] = {}
    for number in range(count):
        at += rng.uniform(4, 40)
        question = f"{rng.choice(texts.questions)} {rng.choice(texts.sentences)} ({rng.randrange(10**6)})"
        session = f"s{number // 6 if family == 'agent' else number // 2}"
        past = talks.setdefault(session, [])
        found.append(
            Draft(
                number=number,
                at=at,
                session=session,
                question=question,
                rules=list(rules),
                tools=list(tools),
                documents=list(shelf),
                history=list(past) if family == "agent" else [],
            )
        )
        answer = " ".join(rng.sample(texts.sentences, 3))
        past += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return found
