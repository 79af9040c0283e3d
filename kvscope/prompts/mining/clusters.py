"""Groups of prompts that come from one template, formed online and merged when they turn out alike."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

from kvscope.prompts.mining.features import Features

SAME = 0.5
"""Share of features, at least, that makes a prompt one of a template's. Two prompts of one template with a
tenth of their words changed share 0.9⁴ = 0.66 of their pairs of words; a template that is known and such a
prompt 0.9² = 0.81; prompts of different templates far less."""
_MERGE = 0.65
_MERGES_FROM = 4  # prompts, from which on a cluster knows its template from noise
_SAME_TOOLS = 0.6
_FREE = 0.3  # of a prompt, at least, must be the template's: the rest may be free text
_CORE = 0.5  # of a cluster's prompts have a feature that counts as the template's
_HALVED_AT = 256  # prompts; then older ones count half, so that a template may change
_MOST_COUNTED = 8192  # features a cluster
_VOTERS = 64  # features a cluster that find it
_CANDIDATES = 8
_LEARNS_EVERY = 32
_KNOWN_FROM = 64  # prompts, from which on one in `_SAMPLED` counts: this lies on the way of traffic
_SAMPLED = 16


@dataclasses.dataclass(slots=True, eq=False)
class Cluster:
    """One template as far as it is known."""

    name: str
    number: int  # order of founding
    tools: Features
    core: Features
    counts: Counter[int]
    seen: int = 1  # distinct prompts that count, older ones half
    met: int = 1  # distinct prompts
    merged_into: "Cluster | None" = None

    @property
    def root(self) -> "Cluster":
        """The cluster that this one has become part of, or itself."""
        cluster = self
        while cluster.merged_into is not None:
            cluster = cluster.merged_into
        return cluster


class Clusters:
    """The clusters of one model's traffic; holds ``most`` at the most.

    ``growing``: a template shows piece by piece, so one that holds another is the same, seen later.
    """

    def __init__(self, most: int, *, growing: bool = False) -> None:
        self._most = most
        self._growing = growing
        self._all: dict[str, Cluster] = {}
        self._by_voter: dict[int, list[Cluster]] = {}
        self._founded = 0

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def find(self, features: Features, tools: Features) -> Cluster | None:
        """Return the cluster that a prompt belongs to, or None."""
        best: tuple[float, int, Cluster] | None = None
        for cluster in self._candidates(features):
            alike = _alike(features, cluster.core)
            if alike > SAME and _same_tools(tools, cluster.tools):
                rank = (alike, -cluster.number, cluster)
                if best is None or rank[:2] > best[:2]:
                    best = rank
        return best[2] if best is not None else None

    def found(self, name: str, features: Features, tools: Features) -> Cluster | None:
        """Return a new cluster, or None where there are too many or the name is taken.

        Where there are too many, the oldest one that only one prompt was ever of makes room.
        """
        if name in self._all:
            return None
        if len(self._all) >= self._most:
            alone = next((each for each in self._all.values() if each.met == 1), None)
            if alone is None:
                return None
            self._leave(alone)
            del self._all[alone.name]
        self._founded += 1
        cluster = Cluster(name, self._founded, tools, features, Counter(features))
        self._all[name] = cluster
        self._enter(cluster)
        return cluster

    def learn(self, cluster: Cluster, features: Features) -> Cluster:
        """Let a distinct prompt of ``cluster`` count; return the cluster, perhaps one that it merged with."""
        cluster.met += 1
        if cluster.seen >= _KNOWN_FROM and cluster.met % _SAMPLED:
            return cluster
        cluster.counts.update(features)
        cluster.seen += 1
        if cluster.seen & (cluster.seen - 1) == 0 or cluster.seen % _LEARNS_EVERY == 0:
            self._refine(cluster)
            return self._merged(cluster)
        return cluster

    def _refine(self, cluster: Cluster) -> None:
        if cluster.seen > _HALVED_AT:
            cluster.seen //= 2
            cluster.counts = Counter({f: n // 2 for f, n in cluster.counts.items() if n > 1})
        if len(cluster.counts) > _MOST_COUNTED:
            cluster.counts = Counter(dict(cluster.counts.most_common(_MOST_COUNTED // 2)))
        enough = cluster.seen * _CORE
        core = frozenset(f for f, n in cluster.counts.items() if n > enough)
        if core:
            self._leave(cluster)
            cluster.core = core
            self._enter(cluster)

    def _merged(self, cluster: Cluster) -> Cluster:
        """Merge ``cluster`` with one that has the same template; the older one's name stays."""
        if cluster.seen < _MERGES_FROM:
            return cluster
        for other in self._candidates(cluster.core):
            if other is cluster or not _same_tools(cluster.tools, other.tools):
                continue
            if self._are_one(cluster, other):
                cluster = self._merge(cluster, other)
        return cluster

    def _are_one(self, one: Cluster, other: Cluster) -> bool:
        if self._growing:
            smaller = min(len(one.core), len(other.core))
            return len(one.core & other.core) >= _MERGE * smaller
        # the one that is known less counts as a prompt of the other: it holds noise and free text yet
        less, more = sorted((one, other), key=lambda each: each.seen)
        return _alike(less.core, more.core) >= _MERGE

    def _merge(self, one: Cluster, other: Cluster) -> Cluster:
        old, young = sorted((one, other), key=lambda each: each.number)
        self._leave(young)
        del self._all[young.name]
        young.merged_into = old
        old.counts.update(young.counts)
        old.seen += young.seen
        self._refine(old)
        return old

    def _candidates(self, features: Features) -> list[Cluster]:
        votes: Counter[Cluster] = Counter()
        for feature in features & self._by_voter.keys():
            votes.update(self._by_voter[feature])
        return [cluster for cluster, _ in votes.most_common(_CANDIDATES)]

    def _enter(self, cluster: Cluster) -> None:
        for feature in _voters(cluster.core):
            self._by_voter.setdefault(feature, []).append(cluster)

    def _leave(self, cluster: Cluster) -> None:
        for feature in _voters(cluster.core):
            others = [each for each in self._by_voter.get(feature, ()) if each is not cluster]
            if others:
                self._by_voter[feature] = others
            else:
                self._by_voter.pop(feature, None)


def _voters(core: Features) -> list[int]:
    """Return the features by which a cluster is found: the smallest, so that like cores have like ones."""
    return sorted(core)[:_VOTERS]


def _alike(features: Features, core: Features) -> float:
    if not features or not core:
        return float(features == core)
    return len(features & core) / max(len(core), _FREE * len(features))


def _same_tools(one: Features, other: Features) -> bool:
    if one == other:
        return True
    return len(one & other) >= _SAME_TOOLS * len(one | other)
