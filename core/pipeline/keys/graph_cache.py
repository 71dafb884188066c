"""What graphs compiled to, in the artifact cache by the keys of the graphs (``graph_key``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from turret.errors import CacheError, warn
from turret.hooks.config import Config
from turret.hooks.signature import GraphSignature
from turret.plan import Plan
from turret.storage import codec
from turret.storage.artifact_cache import ArtifactCache, Store
from turret.storage.codec import record

if TYPE_CHECKING:
    from turret.pipeline.graph_compilers.assembly import Assembly


@record
@attrs.frozen(eq=False)
class Artifact:
    """What a graph compiled to: a plan, or what compilers of others made, and of a forward how to join it to user code.

    A backward has the plan alone.
    """

    plan: Plan | Assembly
    signature: GraphSignature | None = None
    saved_tensors: int = 0
    saved_sizes: int = 0

    @property
    def saved(self) -> tuple[int, int]:
        """How many tensors, and how many sizes, the forward saves."""
        return self.saved_tensors, self.saved_sizes

    @property
    def forward_signature(self) -> GraphSignature:
        """The signature; ``CacheError`` where this is a backward, which has none."""
        if self.signature is None:
            raise CacheError("what is stored as a forward has no signature; turret cache clear removes it")
        return self.signature


@attrs.frozen(eq=False)
class CacheEntry:
    """Where one graph is stored, and all that it compiles to: a cache, and the graph's key in it."""

    cache: GraphCache
    key: str

    def graph(self) -> Any:
        """The captured graph itself, a ``StoredGraph``, or None."""
        return self.cache.get_graph(self.key)


def with_usable_cache(config: Config) -> Config:
    """``config``, with the cache off (and a warning) where its folder is unusable."""
    if config.cache:
        try:
            ArtifactCache(config.cache_dir or None)
        except CacheError as error:
            warn(f"Turret keeps no compiled artifacts: {error}")
            return attrs.evolve(config, cache=False)
    return config


class GraphCache:
    """Compiled graphs in the artifact cache, by the key of the captured graph and the role of the plan.

    ``report`` is told what is there and cannot be used, or cannot be written.
    """

    def __init__(self, store: Store, report: Callable[[str], None]) -> None:
        self.store, self.report = store, report

    def get(self, key: str, role: str) -> Artifact | None:
        """A stored artifact, or None."""
        found = self._read(key, role)
        return found if isinstance(found, Artifact) else None

    def put(self, key: str, role: str, artifact: Artifact) -> None:
        """Store an artifact in place of what is there.

        One that cannot be written (an argument of a call that is no plain data) is left out, on record.
        """
        self._write(key, role, artifact)

    def get_graph(self, key: str) -> Any:
        """The captured graph itself, a ``StoredGraph``, or None."""
        return self._read(key, "captured")

    def put_graph(self, key: str, graph: Any) -> bool:
        """Store a ``StoredGraph``; returns whether it is there now."""
        return self._write(key, "captured", graph)

    def discard(self, key: str, role: str, reason: str) -> None:
        """Remove what is stored and of no use."""
        self.report(f"the {role} of {key} is not used: {reason}")
        self.store.remove(_entry(key, role))

    def _read(self, key: str, role: str) -> Any:
        entry = self.store.get(_entry(key, role), role)
        if entry is None:
            return None
        try:
            return codec.loads(entry[_FILE].decode())
        except (CacheError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            self.discard(key, role, f"{type(error).__name__}: {error}")
            return None

    def _write(self, key: str, role: str, value: Any) -> bool:
        try:
            text = codec.dumps(value)
            self.store.put(_entry(key, role), role, {_FILE: text.encode()})
        except CacheError as error:
            self.report(f"the {role} of {key} is not kept: {error}")
            return False
        return True


_FILE = "artifact.json"


def _entry(key: str, role: str) -> str:
    return hashlib.sha256(f"{key} {role}".encode()).hexdigest()
