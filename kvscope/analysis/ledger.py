"""The prompts that were seen lately, in order of arrival: what a new prompt is compared with. Memory only."""

import dataclasses
import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from kvscope.analysis.attribution import PromptFacts
from kvscope.analysis.difference import Place, first_difference
from kvscope.analysis.radix import RadixTree
from kvscope.analysis.shingles import Hashes, Tokens, WindowSet, window_hashes
from kvscope.cache.hashing import block_chain, root_of
from kvscope.prompts.segments import Segment

_ENTRY_BYTES = 2_000  # what one entry costs besides its tokens and texts
_TOKEN_BYTES = 4 + 8 + 8  # itself, its window, its share of the route's set
_DOMAINS = 50_000  # salts may be as many as users; then contents of others are forgotten
_MANY = -1  # a content that began prompts of more than one domain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A prompt as the ledger takes it in. Prompts of one engine, salt and LoRA may share blocks."""

    engine: str
    route: str
    tokens: Sequence[int]
    segments: Sequence[Segment]
    salt: str | None = None
    lora: str | None = None
    block_size: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Domain:
    """Inside of it blocks are shared."""

    engine: str
    root: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Known:
    serial: int
    domain: _Domain
    route: str
    tokens: Tokens
    windows: Hashes
    segments: tuple[Segment, ...]
    bytes: int


@dataclasses.dataclass(slots=True)
class _Group:
    """The latest prompts of one route in one domain, and the windows in them."""

    latest: deque[_Known] = dataclasses.field(default_factory=deque)
    windows: WindowSet = dataclasses.field(default_factory=WindowSet)
    tree: RadixTree[_Known] = dataclasses.field(default_factory=RadixTree[_Known])


class Ledger:
    """Compares each prompt with those before it and remembers it; for one thread.

    Bounded: ``group_prompts`` prompts a route (of one engine and salt), ``max_bytes`` in all, and
    ``max_chain_ids`` block ids for each engine and for contents; the oldest are forgotten first.
    """

    def __init__(
        self, *, group_prompts: int = 64, max_bytes: int = 64_000_000, max_chain_ids: int = 300_000
    ) -> None:
        self._group_prompts = group_prompts
        self._max_bytes = max_bytes
        self._max_chain_ids = max_chain_ids
        self._bytes = 0
        self._serials = itertools.count(1)
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._groups: dict[tuple[_Domain, str], _Group] = {}
        self._trees: dict[_Domain, RadixTree[_Known]] = {}
        self._seen: dict[str, dict[int, int]] = {}  # engine -> chain id -> serial of the first prompt
        self._contents: dict[int, int] = {}  # chain id without salt and LoRA -> number of its domain
        self._domains: dict[_Domain, int] = {}

    @property
    def bytes(self) -> int:
        """Estimated memory of the remembered prompts."""
        return self._bytes

    def __len__(self) -> int:
        """Return the number of remembered prompts."""
        return len(self._known)

    def arrive(self, arrival: Arrival) -> PromptFacts:
        """Return what earlier prompts tell about this one, and remember it."""
        serial = next(self._serials)
        domain = _Domain(arrival.engine, root_of(salt=arrival.salt, lora=arrival.lora))
        tokens = np.asarray(arrival.tokens, dtype=np.uint32)
        size = arrival.block_size
        chain = block_chain(tokens, size, domain.root) if size else []
        plain = block_chain(tokens, size) if size and domain.root else chain
        nearest, difference = self._nearest(domain, arrival.route, tokens)
        firsts = self._first_serials(arrival.engine, chain)
        if nearest is not None and size and difference is not None:
            # an id may have been forgotten while the prompt itself is still known
            firsts += [nearest.serial] * (min(difference // size, len(chain)) - len(firsts))
        group = self._groups.get((domain, arrival.route))
        known = np.zeros(len(tokens), dtype=np.bool_)
        if group is not None and difference is not None:
            known = group.windows.known(tokens, difference)
        place: Place | None = None
        if nearest is not None:
            place = first_difference(arrival.segments, nearest.segments)
        facts = PromptFacts(
            serial=serial,
            prompt_tokens=len(tokens),
            block_size=size,
            chain=tuple(chain),
            first_serials=tuple(firsts),
            elsewhere_blocks=self._elsewhere(domain, plain),
            difference=difference,
            known=known,
            place=place,
        )
        self._remember(serial, domain, arrival, tokens)
        self._note_chain(serial, domain, chain, plain)
        return facts

    def forget(self, facts: PromptFacts, engine: str) -> None:
        """Take back a prompt that the engine never computed; its ids that were new are unknown again."""
        known = self._known.get(facts.serial)
        if known is not None:
            self._drop(known)
        seen = self._seen.get(engine, {})
        for chain_id in facts.chain[facts.seen_blocks :]:
            if seen.get(chain_id) == facts.serial:
                del seen[chain_id]

    def _first_serials(self, engine: str, chain: Sequence[int]) -> list[int]:
        seen = self._seen.get(engine, {})
        return list(itertools.takewhile(bool, (seen.get(chain_id, 0) for chain_id in chain)))

    def _elsewhere(self, domain: _Domain, plain: Sequence[int]) -> int:
        """Return how many leading blocks have a content that began a prompt of another domain."""
        own = self._domains.get(domain)
        if len(self._domains) - (own is not None) < 1:
            return 0
        elsewhere = (self._contents.get(chain_id, own) != own for chain_id in plain)
        return sum(itertools.takewhile(bool, elsewhere))

    def _nearest(self, domain: _Domain, route: str, tokens: Tokens) -> tuple[_Known, int] | tuple[None, None]:
        """Return the known prompt with the longest common prefix, and that prefix's length.

        Of the route's prompts, or, where there are none, of all those of the domain; the newest among equals.
        """
        group = self._groups.get((domain, route))
        tree = self._trees.get(domain) if group is None else group.tree
        found = None if tree is None else tree.nearest(tokens)
        return found or (None, None)

    def _remember(self, serial: int, domain: _Domain, arrival: Arrival, tokens: Tokens) -> None:
        chars = sum(len(segment.text) for segment in arrival.segments)
        known = _Known(
            serial=serial,
            domain=domain,
            route=arrival.route,
            tokens=tokens,
            windows=np.sort(window_hashes(tokens)),
            segments=tuple(arrival.segments),
            bytes=_ENTRY_BYTES + _TOKEN_BYTES * len(tokens) + chars,
        )
        group = self._groups.setdefault((domain, arrival.route), _Group())
        group.latest.append(known)
        for tree in (group.tree, self._trees.setdefault(domain, RadixTree())):
            tree.add(tokens, serial, known)
        self._known[serial] = known
        self._bytes += known.bytes
        if len(group.latest) > self._group_prompts:
            self._drop(group.latest[0])
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._known.values())))
        group.windows.add(known.windows, (entry.windows for entry in group.latest))

    def _drop(self, known: _Known) -> None:
        del self._known[known.serial]
        self._bytes -= known.bytes
        group = self._groups[known.domain, known.route]
        group.latest.remove(known)
        everywhere = self._trees[known.domain]
        for tree in (group.tree, everywhere):
            tree.remove(known.tokens, known.serial)
        if not group.latest:
            del self._groups[known.domain, known.route]
        if not everywhere:
            del self._trees[known.domain]

    def _note_chain(self, serial: int, domain: _Domain, chain: Sequence[int], plain: Sequence[int]) -> None:
        if len(self._domains) > _DOMAINS:
            self._domains.clear()
            self._contents.clear()
        number = self._domains.setdefault(domain, len(self._domains) + 1)
        seen = self._seen.setdefault(domain.engine, {})
        for chain_id, content in zip(chain, plain, strict=True):
            seen.setdefault(chain_id, serial)
            if self._contents.setdefault(content, number) != number:
                self._contents[content] = _MANY
        _shorten(seen, self._max_chain_ids)
        _shorten(self._contents, self._max_chain_ids)


def _shorten(ids: dict[int, int], most: int) -> None:
    """Forget the oldest tenth when there are too many."""
    if len(ids) > most:
        for chain_id in list(itertools.islice(ids, most // 10 + len(ids) - most)):
            del ids[chain_id]
