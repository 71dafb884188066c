"""Captured graphs that run call by call, and what an error leaves behind that ends one.

A frame whose graph raises runs once more as Python, from its beginning (``plugins/capture``), so that the program finds
what eager would have left: which needs inputs that are as they were.  A plan writes to them last of all.  A graph that
runs eagerly writes in the middle, so what it writes to is copied first, and put back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from turret.frames.saved_tensor_hooks import raised_by_hook
from turret.frames.trace_modes import SETTERS, mode_values, restore_modes
from turret.torch_compat.autograd import set_version_counters
from turret.torch_compat.dispatch import TorchDispatchMode, has_storage

LIMIT = 1 << 28
"""Bytes of memory that are copied, at most, each time that a graph which writes to it runs eagerly.  Beyond it an error
ends the call where it is raised, with what the graph wrote and without what Python did before."""


class _Latest(threading.local):
    """The latest error that ended a graph that ran eagerly and left its inputs as they were, by its id."""

    error: int | None = None


_latest = _Latest()


def eagerly(module: fx.GraphModule, call: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A captured graph as a function that runs it eagerly, or runs ``call``, which somebody made of it.

    The program's ``with`` blocks are calls of setters in it, which an error would leave half done; the modes are then
    made what they were before the graph, and so are the inputs that it writes to, as far as that can be done.  An error
    is marked where inputs are as they were (``left_no_writes``).
    """
    # A graph module, called, writes of an error to stderr, which is the program's to see.
    call = with_ifs(module).forward if call is None else call
    functions = [node for node in module.graph.nodes if node.op == "call_function"]
    hides_writes = any(node.target is getattr and node.args[1] == "data" for node in functions)
    sets_modes = any(node.target in SETTERS for node in functions)
    inputs = module.graph.find_nodes(op="placeholder")
    written = [n for n, node in enumerate(inputs) if node.meta.get("written")]

    def run(*args: Any) -> Any:
        before = mode_values() if sets_modes else {}
        given = [v for v in args if isinstance(v, torch.Tensor)]
        watch: Any = _Writes(given) if hides_writes or any(v.is_inference() for v in given) else _Versions(given)
        kept = _Kept(given, [args[n] for n in written])
        try:
            with watch:
                return call(*args)
        except BaseException as error:
            if sets_modes:
                restore_modes(before)
            note_writes(error, not kept.is_undone(watch.wrote(), error))
            raise

    return run


def with_ifs(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with each ``if`` of the program as one again; the graph itself, if it has none.

    torch's ``cond`` traces both sides anew for each gradient, gives zeros to what the other side alone has read, and
    fails in backwards for some sizes that change.
    """
    sides = [arg for node in module.graph.nodes if "is_if" in node.meta for arg in node.args[1:3]]
    if not sides:
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if "is_if" in node.meta:
            node.target = _taken
    made = fx.GraphModule(module, graph, type(module).__name__)
    for side in sides:
        setattr(made, side.target, with_ifs(getattr(module, side.target)))
    return made


def _taken(condition: torch.Tensor, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any) -> Any:
    return (if_true if condition else if_false)(*operands)


class _Kept:
    """Tensors that a graph is given, with copies of what it is about to write to."""

    def __init__(self, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        self._states = [(v, _state(v), _version(v)) for v in given] if written else []
        memory = {v.untyped_storage()._cdata: v.untyped_storage() for v in written if _has_storage(v)}
        small = sum(storage.nbytes() for storage in memory.values()) <= LIMIT
        self._copies = {name: (storage, storage.clone()) for name, storage in memory.items()} if small else {}

    def is_undone(self, wrote: set[int | None], error: BaseException) -> bool:
        """Whether nothing is left of writes to the memory in ``wrote``, which are undone after ``error``, if they can.

        What a hook on saved tensors raises ends a recomputation that the program asked for: its writes stay.
        """
        if not wrote:
            return True
        return isinstance(error, Exception) and not raised_by_hook(error) and self._put_back(wrote)

    def _put_back(self, wrote: set[int | None]) -> bool:
        """Make the tensors what they were, of which the memory in ``wrote`` was written to; whether that can be done.

        It cannot where there is no copy, or where autograd has learned of the write.
        """
        if not wrote <= self._copies.keys() or any(_state(v) != state for v, state, _ in self._states):
            return False
        with torch.no_grad():
            for name in wrote:
                storage, copy = self._copies[name]
                if storage.nbytes() != copy.nbytes():
                    return False
                storage.copy_(copy)
        changed = [(v, version) for v, _, version in self._states if _version(v) != version]
        set_version_counters(tuple(v for v, _ in changed), tuple(version for _, version in changed))
        return True


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    placed = (tensor.stride(), tensor.storage_offset(), _memory(tensor)) if _has_storage(tensor) else ()
    return tensor.shape, tensor.dtype, tensor.requires_grad, tensor.grad_fn, placed


class _Versions(contextlib.nullcontext[None]):
    """Which memory of some tensors is written to, by autograd's counts."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._before = [(v, v._version) for v in tensors]

    def wrote(self) -> set[int | None]:
        """The storages, by their addresses in torch; None for what has none."""
        return {_memory(tensor) for tensor, version in self._before if tensor._version != version}


class _Writes(TorchDispatchMode):
    """Which memory of some tensors is written to, seen op by op: autograd does not count every write."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = set(map(_memory, tensors))
        self._found: set[int | None] = self._known & {None}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if func._schema.is_mutable:
                from turret.graph.op_traits import written_tensors  # a warm start has no use for it

                written = set(map(_memory, written_tensors(func, args, kwargs or {})))
                self._found |= written & (self._known | {None})

    def wrote(self) -> set[int | None]:
        """As ``_Versions.wrote``."""
        return self._found


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if _has_storage(tensor) else None


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and has_storage(tensor)


def note_writes(error: BaseException, wrote: bool) -> None:
    """Remember of an error under way whether the graph that it ends has left writes to any of its inputs."""
    _latest.error = None if wrote else id(error)


def left_no_writes(error: BaseException) -> bool:
    """Whether an error came out of a graph that ran eagerly, and whose inputs are as they were before it.

    To be asked before anything else runs that may raise.
    """
    return _latest.error == id(error)
