"""Captures kept on disk: a later process takes a unit from the artifact cache and traces nothing.

A stored unit holds its guards, its rebuilt source and the key of its compiled graph.  It is used where everything
that capture took from the first process is the same in the second: the source files and the code that was followed,
classes, what was read of torch without a guard (``Provenance``), the objects that it names, and then the guards
themselves, checked on the call at hand.  Whatever is missing or different is a miss with its reason, and the frame is
captured as ever.  Entries are plain data: nothing is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from turret.errors import CacheError
from turret.frames import frame_hook
from turret.frames.class_members import own_attribute
from turret.frames.guard_tree import check_of
from turret.frames.guards import Guard, storage_pattern
from turret.frames.sources import BoundSource, Source
from turret.pipeline.gc_pause import full_gc_paused
from turret.pipeline.keys.graph_key import Unstable, environment, operator_text, source_fingerprint
from turret.plugins.capture.facts import fingerprints
from turret.plugins.capture.facts.provenance import OF_CLASSES, Fact, FactKind, Provenance, guards_of, live_fact
from turret.plugins.capture.python import resume
from turret.plugins.capture.python.places import at_line
from turret.plugins.capture.rebuilding.failures import AsPython, random_states
from turret.plugins.capture.store.alike import outline
from turret.plugins.capture.store.portable import Packed, Packer, Unpacker
from turret.plugins.capture.store.references import Changed, NotPortable
from turret.plugins.capture.store.unit import CompileUnit, FilteredGuards, filtered, load_source, make_unit
from turret.storage.artifact_cache import Store

if TYPE_CHECKING:
    from turret.plugins.capture.record.graph import GraphInput
    from turret.plugins.capture.store.settings import FrameCache, Settings
    from turret.plugins.capture.values.base import Tracer

SLOTS = 16
"""Units of one frame that are kept; the oldest makes place for a new one."""
ROLE = "unit"
_FILE = "unit.json"
_OF_THIS_PROCESS = (
    "dereference",
    "graph",
    "tail",
    "rerun",
    "random_states",
    "at_line",
    "compiled",
    "__builtins__",
    "__name__",
)
"""Names of a scope that are bound anew."""


# Where units lie.


def frame_key(settings: Settings, function: types.FunctionType, arguments: tuple) -> str | None:
    """What units of a frame are filed under; None where none are kept.  Raises ``Unstable`` where none can be."""
    text = settings.stored_under
    if text is None or resume.is_resume(function.__code__):
        return None
    digest = hashlib.sha256()
    facts = (
        "unit", sys.version, text, source_fingerprint(), *environment(), settings.fullgraph, settings.dynamic,
        function.__module__, fingerprints.of_code(function.__code__), *map(_kind_of_argument, arguments),
    )  # fmt: skip
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def _kind_of_argument(value: Any) -> str:
    """A rough word on an argument, so that units of other models are seldom tried."""
    if isinstance(value, nn.Module):
        return outline(value)
    return fingerprints.name_of(type(value))


def _store(settings: Settings) -> Store:
    return settings.context.store("capture")


def _slot(key: str, number: int) -> str:
    return hashlib.sha256(f"{key} {number}".encode()).hexdigest()


# Keeping.


@attrs.frozen
class CaptureRecord:
    """One capture: the call that it was taken in, what it noted, its unit, and the key of its compiled graph."""

    function: Any
    arguments: tuple
    history: Any
    tracer: Tracer
    unit: CompileUnit
    scope: dict[str, Any]
    graph: str | None


def keep(settings: Settings, taken: CaptureRecord) -> None:
    """Store a unit, or report why it cannot be stored."""
    context, function = settings.context, taken.function
    try:
        try:
            key = frame_key(settings, function, taken.arguments)
            if key is None:
                return
            packed = _pack(taken)
            _write(_store(settings), key, json.dumps(packed, separators=(",", ":")).encode())
        except (NotPortable, Unstable, CacheError, OSError) as error:
            message = f"{function.__qualname__} is captured anew in every process: {error}"
            context.emit("perf_hint", stage="capture", name=function.__qualname__, message=message)
    except Exception as error:
        if context.config.on_error == "raise":
            raise
        message = f"{function.__qualname__} could not be kept on disk: {type(error).__name__}: {error}"
        context.emit("perf_hint", stage="capture", name=function.__qualname__, message=message)


def _write(store: Store, key: str, content: bytes) -> None:
    """Put an entry into a free slot, or in place of the oldest one; nothing where it is there already."""
    used: dict[str, float] = {}
    for number in range(SLOTS):
        entry = _slot(key, number)
        found = store.get(entry, ROLE)
        if found is None:
            store.put(entry, ROLE, {_FILE: content})
            return
        if found[_FILE] == content:
            return
        used[entry] = store.used(entry)
    oldest = min(used, key=used.__getitem__)
    store.remove(oldest)
    store.put(oldest, ROLE, {_FILE: content})


def _pack(taken: CaptureRecord) -> dict[str, Any]:
    """A unit as plain data; raises ``NotPortable`` with the reason where that cannot be."""
    function, arguments, history, tracer = taken.function, taken.arguments, taken.history, taken.tracer
    provenance: Provenance = tracer.provenance
    if provenance.obstacles:
        raise NotPortable(provenance.obstacles[0])
    if "graph" in taken.scope and taken.graph is None:
        raise NotPortable("its graph is not stored")
    guards = tuple(tracer.guards)
    origins = _origins(tracer, guards)
    facts = [f for f in provenance.facts.values() if f.kind == "attribute" and isinstance(f.owner, types.ModuleType)]
    packer = Packer(origins, {id(f.found): f"{f.owner.__name__}.{f.name}" for f in facts}, provenance.made)
    rows = [packer.guard(g) for g in guards]
    names = {n: packer.value(v) for n, v in taken.scope.items() if n not in _OF_THIS_PROCESS}
    witnesses = [packer.object(w) for w in _witnesses(tracer)]
    packed_facts = [_pack_fact(packer, fact) for fact in provenance.facts.values()]
    storages = _storages(packer, [i for i in tracer.recorder.inputs if isinstance(i.real, torch.Tensor)])
    _check_tensors(packer, guards)
    _check_covered(provenance, function, packer.values)
    packed = {
        "name": function.__qualname__,
        "steady": taken.unit.steady,
        "files": _files(provenance),
        "facts": packed_facts,
        "storages": storages,
        "witnesses": witnesses,
        "guards": rows,
        "parameters": len(arguments),
        "text": taken.unit.source,
        "scope": names,
        "graph": taken.graph,
        "history": [history.shapes, history.ints, history.floats],
        "objects": packer.objects,
        "sources": packer.sources,
    }
    _read_back(packed, function, arguments, packer, guards)
    return packed


def _storages(packer: Packer, inputs: list[GraphInput]) -> list[list]:
    """Sources of tensors, the offsets of those that lie where they are, and which of them share memory."""
    offsets = [i.real.storage_offset() if i.static else None for i in inputs]
    return [[packer.source(i.source) for i in inputs], offsets, list(storage_pattern([i.real for i in inputs]))]


def _origins(tracer: Tracer, guards: Sequence[Guard]) -> dict[int, Source]:
    """Where capture found objects that it knows by identity, or functions by their code, by their ids."""
    from turret.plugins.capture.values.functions import LocalFunction

    found = {id(g.expected): g.source for g in guards if g.kind == "ID" and g.source is not None}
    for guard in guards:
        if guard.kind in ("IS", "SAME") and isinstance(guard.others[0], BoundSource) and guard.source is not None:
            found.setdefault(id(guard.others[0].value), guard.source)
    for value in tracer.objects.values():
        if isinstance(value, LocalFunction):
            found.setdefault(id(value.object), value.source)
    return found


def _witnesses(tracer: Tracer) -> list[Any]:
    """Functions, classes and modules that the capture met, guarded or not; empty cells are in the way."""
    from turret.plugins.capture.values.functions import Builtin, Cell, Known
    from turret.plugins.capture.values.objects import Instance

    found: list[Any] = []
    for value in tracer.objects.values():
        if isinstance(value, Cell) and value.cell is not None and value.content is None:
            raise NotPortable("a closure variable without a value")
        if isinstance(value, Builtin) and _method_of_a_constant(value.object):
            continue
        if isinstance(value, Known):
            found.append(value.object)
        elif isinstance(value, Instance) and value.object is not None:
            found.append(value.kind)
    return [v for v in found if not _is_turrets(v)]


def _is_turrets(value: Any) -> bool:
    """Whether something is Turret's own, which the key covers."""
    name = value.__name__ if isinstance(value, types.ModuleType) else own_attribute(value, "__module__")
    return isinstance(name, str) and name.partition(".")[0] == "turret"


_CONSTANT_OWNERS = (*fingerprints.PLAIN, tuple, torch.dtype, torch.device, torch.Size)


def _method_of_a_constant(function: Any) -> bool:
    owner = own_attribute(function, "__self__")
    return owner is not None and type(owner) in _CONSTANT_OWNERS


def _pack_fact(packer: Packer, fact: Fact) -> list:
    """A fact with the description of what was found; raises ``NotPortable`` for one that does not hold any more."""
    if fact.kind in OF_CLASSES:
        return [fact.kind, packer.object(fact.owner), fact.name, ""]
    if fact.kind == "refers":
        return ["refers", packer.object(fact.owner), packer.value(fact.found), ""]
    if fact.kind == "operator":
        return ["operator", packer.object(fact.owner), "", operator_text(fact.owner)]
    if fact.kind == "call":
        row: list = ["call", packer.object(fact.owner), packer.value(fact.name), fingerprints.describe(fact.found)]
    else:
        label = "sys.modules" if fact.owner is sys.modules else ""
        row = [fact.kind, packer.object(fact.owner, label), fact.name, fingerprints.describe(fact.found)]
    if not _holds(fact.kind, fact.owner, fact.name, row[-1]):
        raise NotPortable(f"{_fact_text(fact.owner, fact.name)} is not what it was before the call")
    return row


def _fact_text(owner: Any, name: Any) -> str:
    return f"{own_attribute(owner, '__name__') or type(owner).__name__} {name}"


def _holds(kind: str, owner: Any, name: Any, description: str) -> bool:
    """Whether a fact is one (still)."""
    match kind:
        case "operator":
            return operator_text(owner) == description
        case "attribute":
            return hasattr(owner, name) and fingerprints.describe(getattr(owner, name)) == description
        case "item":
            return name in owner and fingerprints.describe(owner[name]) == description
        case "refers":
            return owner() is name
        case "absent":
            return not hasattr(owner, name)
        case "lacks":
            return name not in owner
        case "call":
            return fingerprints.describe(owner(*name)) == description
    return False


def _check_tensors(packer: Packer, guards: Sequence[Guard]) -> None:
    """Tensors are told by their guards: one that another process finds must have one."""
    guarded = {id(getattr(g.source, "value", None)) for g in guards if g.kind == "TENSOR"}
    for value in packer.values:
        if isinstance(value, torch.Tensor) and id(value) not in guarded:
            raise NotPortable("a tensor that no guard speaks of")


def _check_covered(provenance: Provenance, function: types.FunctionType, objects: Sequence[Any]) -> None:
    """All code that was followed must be part of something whose fingerprint is compared."""
    covered: set[types.CodeType] = set()
    _cover(function.__code__, covered)
    for value in objects:
        if isinstance(value, type):
            for base in value.__mro__:
                for raw in vars(base).values():
                    _cover_functions(raw, covered)
        else:
            _cover_functions(value, covered)
    own = _own_folders()
    for code in provenance.codes:
        if code not in covered and not code.co_filename.startswith(own):
            raise NotPortable(
                f"{code.co_filename}:{code.co_firstlineno} in {code.co_name} belongs to nothing with a name"
            )


def _cover_functions(value: Any, covered: set[types.CodeType]) -> None:
    for function in fingerprints.code_of(value):
        _cover(function.__code__, covered)


def _cover(code: types.CodeType, covered: set[types.CodeType]) -> None:
    if code not in covered:
        covered.add(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                _cover(constant, covered)


@functools.cache
def _own_folders() -> tuple[str, ...]:
    """Turret's own source, which the key covers."""
    from turret import plugins

    own = os.path.dirname(sys.modules["turret"].__file__ or "")
    return tuple(f.rstrip(os.sep) + os.sep for f in (own, *plugins.__path__))


def _has_a_version(name: str) -> bool:
    """Whether a file is torch's or the standard library's: the key has their versions, and their code is compared."""
    torchs, librarys = (os.path.dirname(f) + os.sep for f in (torch.__file__, os.__file__))
    return name.startswith(torchs) or (name.startswith(librarys) and f"{os.sep}site-packages{os.sep}" not in name)


def _files(provenance: Provenance) -> dict[str, str]:
    """Hashes of the source files of what was followed, of Turret's own beside."""
    names = sorted({c.co_filename for c in provenance.codes})
    names = [n for n in names if not n.startswith((*_own_folders(), "<")) and not _has_a_version(n)]
    return {name: digest for name in names if (digest := _file_hash(name))}


def _file_hash(name: str) -> str:
    """Hash of a file's content; empty where there is none."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""


def _read_back(
    packed: dict[str, Any], function: types.FunctionType, arguments: tuple, packer: Packer, guards: Sequence[Guard]
) -> None:
    """Make sure that this process would find the very objects and guards again."""
    try:
        unpacker = Unpacker(Packed(packed["objects"], packed["sources"]), function, arguments)
        found = unpacker.objects()
        again = [unpacker.guard(row) for row in packed["guards"]]
    except Changed as error:
        raise NotPortable(f"what it names is not found again: {error}") from error
    made = {id(value) for value, _, _ in packer.made.values()}
    for one, other in zip(found, packer.values, strict=True):
        if one is not other and id(other) not in made:
            raise NotPortable(f"another object is found in place of {other!r:.80}")
    if [str(g) for g in again] != [str(g) for g in guards]:
        raise NotPortable("its guards do not survive being written")


# Finding.


@full_gc_paused()
def find(settings: Settings, cache: FrameCache, function: types.FunctionType, arguments: tuple) -> CompileUnit | None:
    """A stored unit that serves this call, or None; a miss is reported with the reasons."""
    context, name = settings.context, function.__qualname__
    reasons: list[str] = []
    try:
        key = frame_key(settings, function, arguments)
        if key is None:
            return None
        store = _store(settings)
        for number in range(SLOTS):
            entry = _slot(key, number)
            if entry in cache.taken or not store.contains(entry):
                continue
            try:
                unit = _load(settings, cache, store, entry, function, arguments)
            except Changed as error:
                reasons.append(str(error))
                continue
            cache.taken.add(entry)
            context.emit("cache_hit", stage="capture", name=name)
            return unit
    except Unstable as error:
        reasons.append(str(error))
    except Exception as error:  # of a kind not foreseen: never in the way of a capture
        reasons.append(f"{type(error).__name__}: {error}")
        context.emit("cache_failure", stage="capture", name=name, message=reasons[-1])
    message = "; ".join(reasons) or "no capture is stored"
    context.emit("cache_miss", stage="capture", name=name, message=message)
    return None


def _load(
    settings: Settings, cache: FrameCache, store: Store, entry: str, function: Any, arguments: tuple
) -> CompileUnit:
    """The unit of an entry; raises ``Changed`` where it does not serve the call."""
    found = store.get(entry, ROLE)
    if found is None:
        raise Changed("an entry that does not verify")
    packed = json.loads(found[_FILE])
    if packed["parameters"] != len(arguments):
        raise Changed("another number of parameters")
    _check_files(packed["files"])
    unpacker = Unpacker(Packed(packed["objects"], packed["sources"]), function, arguments)
    unpacker.objects()
    facts = [_live_fact(unpacker, *row) for row in packed["facts"]]
    _check_storages(unpacker, *packed["storages"])
    guards = (*map(unpacker.guard, packed["guards"]), *guards_of(facts))
    unit_guards = _checked(settings, guards, function, arguments)
    scope = {name: unpacker.value(value) for name, value in packed["scope"].items()}
    scope |= {"dereference": frame_hook.load().dereference, "tail": frame_hook.load().tail}
    scope |= {"rerun": AsPython(settings.context), "random_states": random_states, "at_line": at_line}
    if packed["graph"] is not None:
        graph = None if settings.storing is None else settings.storing.stored(packed["graph"], "graph")
        if graph is None:
            raise Changed("its compiled graph (or the backward) is not in the cache")
        scope["graph"] = frame_hook.load().suspend(graph)
    cache.history.merge(*packed["history"])
    settings.context.emit("product", stage="guards", name=function.__qualname__, product=unit_guards.kept)
    run = load_source(packed["text"], scope, function)
    return make_unit(unit_guards, run, packed["text"], packed["steady"], settings.audit)


def _check_files(files: dict[str, str]) -> None:
    for name, digest in files.items():
        if _file_hash(name) != digest:
            raise Changed(f"{name} was changed")


def _live_fact(unpacker: Unpacker, kind: FactKind, owner: int, name: Any, description: Any) -> Fact:
    """A fact of this process; of classes it is compared with what is on record by their fingerprints."""
    held, key = unpacker.object(owner), unpacker.value(name)
    if kind not in OF_CLASSES and not _holds(kind, held, key, description):
        raise Changed(f"{_fact_text(held, key)} was changed")
    return live_fact(kind, held, key)


def _check_storages(unpacker: Unpacker, sources: list[int], offsets: list[int | None], pattern: list) -> None:
    """The inputs share memory as they did, and parameters begin where they did."""
    tensors = [unpacker.read(unpacker.source(s)) for s in sources]
    if not all(isinstance(v, torch.Tensor) for v in tensors) or list(storage_pattern(tensors)) != pattern:
        raise Changed("tensors share memory in another way")
    if any(o is not None and v.storage_offset() != o for v, o in zip(tensors, offsets, strict=True)):
        raise Changed("a parameter begins elsewhere in its memory")


def _checked(settings: Settings, guards: tuple[Guard, ...], function: Any, arguments: tuple) -> FilteredGuards:
    """Guards that hold for this call, by the filters of this process; all of them hold, those filtered out too."""
    found = filtered(settings.context, guards, function, arguments, settings.audit)
    dropped = found.dropped
    for part, check in ((found.kept, found.check), *([(dropped, check_of(dropped))] if dropped.guards else ())):
        if not check(function, *arguments):
            raise Changed(part.explain(function, arguments) or "a guard does not hold")
    return found
