"""Gives each request the name of its route: declared by a header, or mined from what its prompts share."""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kvscope.prompts.mining.clusters import Cluster, Clusters
from kvscope.prompts.mining.features import Features, LineFeatures, word_runs
from kvscope.prompts.mining.templates import RepeatedText
from kvscope.prompts.segments import CHAT, content_text, segments
from kvscope.prompts.values import line_key

ROUTE_HEADER = "x-kvscope-route"
_NAME_CHARS = 128
_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_USER_ROLES = frozenset({"user", "prompt"})
_MOST_GROUPS = 64  # of api and model, each with clusters of its own
_MOST_CLUSTERS = 256
_MOST_KNOWN = 4096  # exact repetitions
_TEMPLATE_WORDS = 4
_ALIKE = 64  # clusters whose first lines are the same


class RouteMiner:
    """Names routes. One instance sees all traffic of a process, in order; not for several threads at once.

    Requests of one api and model belong together where their tools and their system messages are alike: free
    text, optional lines and a tenth of noise in them do not part them. Where there is no system message, what
    repeats in the first message or the prompt is the template, and the rest of the traffic is one route.
    A name depends on model, tools and the first line of the system message, so that it is the same after a
    restart and in another process, unless that line itself varies. Memory is bounded and holds no text.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}

    def route(self, api: str, body: Mapping[str, Any], header: str | None) -> str:
        """Return the declared route, or ``auto-<8 hex>`` of the one that the request belongs to."""
        if header and (name := header.strip()) and name.isprintable():
            return name[:_NAME_CHARS]
        key = (api, str(body.get("model", "")))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= _MOST_GROUPS:
                return _named(*key)
            group = self._groups[key] = _Group(key)
        return group.route(api, body)


class _Group:
    """The traffic of one api and model."""

    def __init__(self, key: tuple[str, str]) -> None:
        self._key = key
        self._instructed = Clusters(_MOST_CLUSTERS)
        self._templated = Clusters(_MOST_CLUSTERS, growing=True)
        self._pairs = LineFeatures(2)
        # four words seldom meet by chance, and what users type is full of chance
        self._fours = LineFeatures(_TEMPLATE_WORDS)
        self._repeated = RepeatedText()
        self._known: dict[int, Cluster] = {}

    def route(self, api: str, body: Mapping[str, Any]) -> str:
        names = sorted(_tool_names(body))
        texts = list(_instructions(body)) if api == CHAT else []
        exact = hash((*names, "\0", *texts))
        known = self._known.get(exact)
        if known is not None and texts:
            return known.root.name
        tools = frozenset(map(_checksum, names))
        base = _named(*self._key, *names)
        if not any(texts):
            return self._by_template(api, body, base, tools)
        features = self._pairs.of(texts)
        cluster = self._cluster(self._instructed, features, tools, lambda: (*names, "\0", _anchor(texts)))
        if cluster is None:
            return base
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[exact] = cluster
        return cluster.name

    def _by_template(self, api: str, body: Mapping[str, Any], base: str, tools: Features) -> str:
        """Return the route of a request without instructions."""
        first = next((part.text for part in segments(api, body) if part.role in _USER_ROLES), "")
        template = self._repeated.repeated(self._fours.of((first,)))
        if template is None:
            return base
        cluster = self._cluster(
            self._templated, template, tools, lambda: (base, _repeated_anchor(first, template))
        )
        return base if cluster is None else cluster.name

    def _cluster(
        self, clusters: Clusters, features: Features, tools: Features, identity: Callable[[], Sequence[str]]
    ) -> Cluster | None:
        cluster = clusters.find(features, tools)
        if cluster is not None:
            return clusters.learn(cluster, features)
        words = identity()
        # two templates may begin alike: then the later one is told by its number
        for number in range(_ALIKE):
            name = _named(*self._key, *words, *(str(number) for _ in range(number > 0)))
            if founded := clusters.found(name, features, tools):
                return founded
        return None


def tool_name(tool: Any) -> str | None:
    """Return the name of a function tool, or None for what is not one."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _named(*words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass"))
    return f"auto-{digest.hexdigest()[:8]}"


def _anchor(texts: Iterable[str]) -> str:
    """Return the label of the first line that says anything."""
    lines = (line for text in texts for line in islice(text.split("\n", 20), 20))
    return next((line_key(line) for line in lines if line.strip()), "")


def _repeated_anchor(text: str, template: Features) -> str:
    """Return the words that name a template: of those that repeat the ones with the smallest checksum."""
    runs = (run for line in text.split("\n") for run in word_runs(line, _TEMPLATE_WORDS))
    return min((" ".join(run) for run in runs if hash(run) in template), key=_checksum, default="")


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _tool_names(body: Mapping[str, Any]) -> Iterator[str]:
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        yield tool_name(tool) or ""


def _instructions(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") not in _INSTRUCTION_ROLES:
            return
        yield content_text(message.get("content"))
