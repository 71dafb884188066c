"""How often fake tensors were changed in place while capturing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from turret.graph.op_traits import written_tensors
from turret.graph.wrapper_tensors import WrapperForm, is_wrapper
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.torch_compat.dispatch import TorchDispatchMode
from turret.torch_compat.operators.ops import OpOverload, OpOverloadPacket
from turret.torch_compat.trees import pytree


class Versions:
    """Counts of changes: those of autograd, and its own for tensors made in inference mode, which have none."""

    def __init__(self) -> None:
        self.of_storages: dict[int, int] = {}
        self.inference = torch.is_inference_mode_enabled()
        """Whether there may be tensors that were made in inference mode."""
        self.given: set[int] = set()
        """Storages of those among them that existed before."""
        self.kept: list[tuple[str, torch.Tensor, int]] = []
        """Results that functions remember, and their counts when they were made in the frame."""
        self.later: set[int] = set()
        """Storages that are written to when a backward runs."""
        self.block_step: int | None = None
        """Within a block of ``torch.inference_mode``, which the graph does not enter: the step that entered it."""
        self.watchers: list[Callable[[torch.Tensor], None]] = []
        """Who is told, the last first, of a tensor that is about to be written to, and may prevent it by raising."""

    def of(self, fake: torch.Tensor) -> int:
        """The count of a tensor; views of one memory share it."""
        if not fake.is_inference():
            return fake._version
        return self.of_storages.get(fake.untyped_storage()._cdata, 0)

    def is_written(self, fake: torch.Tensor) -> bool:
        """Whether a tensor is changed, by the graph so far or when a backward of it runs."""
        return bool(self.of(fake)) or (bool(self.later) and fake.untyped_storage()._cdata in self.later)

    def keep(self, name: str, fake: torch.Tensor) -> None:
        """Refuse writes from now on to a tensor that later calls of a function are given, too."""
        self.kept.append((name, fake, self.of(fake)))

    def changed(self, inputs: Iterable[Any]) -> bool:
        """Whether the graph so far writes to tensors that it is given."""
        return any(isinstance(i.example, torch.Tensor) and self.of(i.example) for i in inputs)

    @contextlib.contextmanager
    def counting(self, target: Any, args: list[Any]) -> Iterator[None]:
        """Around a call on fake tensors: counts what autograd does not.

        Fake tensors take a write to a view that real ones refuse: it is left to Python, where it raises in its place.
        """
        written = [args[n] for n in _written_uncounted(target) if n < len(args)] if type(target) in _FUNCTIONS else []
        before = [
            (v, v._version) for v in pytree.tree_leaves(written) if isinstance(v, torch.Tensor) and not v.is_inference()
        ]
        writes = _Writes(self.of_storages)
        watches = _Watches(self.watchers) if self.watchers else contextlib.nullcontext()
        with watches, writes if self.inference else contextlib.nullcontext():
            yield
        for name, fake, count in self.kept:
            if self.of(fake) != count:
                raise Unsupported(f"a write to what {name} remembers", step=NOWHERE)
        if self.block_step is not None and writes.found & self.given:
            reason = "a write in a block of torch.inference_mode to a tensor that was made in the mode before"
            raise Unsupported(reason, step=self.block_step)
        if writes.found and not torch.is_inference_mode_enabled():
            # Eager takes it through ``detach()`` alone, which a graph ahead of a break would not hand on.
            raise Unsupported("a write outside of inference mode to a tensor that was made in it", step=NOWHERE)
        for tensor, version in before:
            if tensor._version == version:
                torch.autograd.graph.increment_version(tensor)


_FUNCTIONS = (type(torch.relu), OpOverload, OpOverloadPacket)


@functools.cache
def _written_uncounted(target: Any) -> tuple[int, ...]:
    """Positions of what a function of torch changes where fake tensors are not counted.

    They are in lists and behind them: ``_amp_foreach_non_finite_check_and_unscale_`` says what it found in its second
    argument.
    """
    if isinstance(target, OpOverload):
        schemas = [target._schema]
    elif target.__name__.endswith("_"):
        packet = getattr(torch.ops.aten, target.__name__, None)
        schemas = [getattr(packet, name)._schema for name in packet.overloads()] if packet is not None else []
    else:
        return ()
    arguments = [pair for schema in schemas for pair in enumerate(schema.arguments)]
    return tuple(sorted({n for n, a in arguments if _is_written(a) and (n > 0 or _is_list(a))}))


def _is_list(argument: Any) -> bool:
    return isinstance(argument.type, torch.ListType)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class _Writes(TorchDispatchMode):
    """Notes in what memory operations write to tensors made in inference mode."""

    def __init__(self, counts: dict[int, int]) -> None:
        super().__init__()
        self.counts = counts
        self.found: set[int] = set()
        """Storages that were written to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        for value in _plain(v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)):
            if value.is_inference():
                self.counts.setdefault(value.untyped_storage()._cdata, 0)
        if func._schema.is_mutable:
            self.note(written_tensors(func, args, kwargs))
        return func(*args, **kwargs)

    def note(self, written: list[torch.Tensor]) -> None:
        """Count a change of each tensor that was written to; a view as another dtype was not made in the mode."""
        for value in _plain(written):
            if value.untyped_storage()._cdata in self.counts:
                self.found.add(value.untyped_storage()._cdata)
                self.counts[value.untyped_storage()._cdata] += 1


class _Watches(TorchDispatchMode):
    """Tells of writes ahead of them."""

    def __init__(self, watchers: list[Callable[[torch.Tensor], None]]) -> None:
        super().__init__()
        self.watchers = watchers

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for value in written_tensors(func, args, kwargs):
                for watch in reversed(self.watchers):
                    watch(value)
        return func(*args, **kwargs)


def _plain(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors, in place of wrappers those in them: what a wrapper's class does to these is not seen by a mode."""
    for tensor in tensors:
        if is_wrapper(type(tensor)):
            yield from WrapperForm.of(tensor).parts(tensor)
        else:
            yield tensor
