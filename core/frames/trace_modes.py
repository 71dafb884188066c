"""The modes of the calling thread that a trace of a graph looks at, so that a later trace sees the same ones."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import fx

from turret.torch_compat import settings
from turret.torch_compat.autograd import set_autograd_compiler, set_saved_tensor_hooks_traced
from turret.torch_compat.dispatch import DisableAutocast, DispatchKey
from turret.torch_compat.function_overrides import (
    TorchFunctionState,
    function_override_state,
    pop_off_function_modes,
    push_onto_function_modes,
    set_function_override_state,
)
from turret.torch_compat.modes import (
    DeviceContext,
    attention_enabled,
    attention_order,
    default_device,
    forward_gradients_enabled,
    function_mode_at,
    function_mode_count,
    peek_redispatch,
    set_attention_enabled,
    set_attention_order,
    set_forward_gradients,
    set_grad_enabled,
)


def _with_autocast_keys() -> list[str]:
    """Device types with a dispatch key of their own for autocast, by names that hold whatever a program calls them."""
    keys = [name for name in DispatchKey.__members__ if name.startswith("Autocast")]
    return [key.removeprefix("Autocast").lower().replace("privateuse1", "privateuseone") for key in keys]


AUTOCAST_DEVICES = tuple(
    kind
    for kind in (*_with_autocast_keys(), "mtia", "maia", "xla")  # the keys of these are not shown to Python
    if torch.amp.autocast_mode.is_autocast_available(kind)
)
"""Device types that have an autocast; asking torch about another one is an error.

A program may switch any of them on and ask for it, whatever device its tensors are on.
"""


def autocast_state() -> tuple[bool | torch.dtype, ...]:
    """For every device type whether autocast is on in this thread, and the dtype it casts to, in one row."""
    return tuple(
        value
        for kind in AUTOCAST_DEVICES
        for value in (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    )


def set_autocast_state(state: tuple[bool | torch.dtype, ...]) -> None:
    """Make ``autocast_state()`` what it was."""
    for kind, enabled, dtype in zip(AUTOCAST_DEVICES, state[::2], state[1::2], strict=True):
        assert isinstance(enabled, bool) and isinstance(dtype, torch.dtype)
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def home_of(function: Any) -> Any:
    """Where a Python function of torch finds itself, by its name, to hand itself to a mode for torch's functions.

    A module or ``torch.Tensor``; None for what is no such function, or has no name there.
    """
    if not isinstance(function, types.FunctionType):
        return None
    method = function.__qualname__ == f"Tensor.{function.__name__}"
    home = torch.Tensor if method else sys.modules.get(function.__module__)
    return home if function.__name__ in getattr(home, "__dict__", ()) else None


def is_replaced(function: Any) -> bool:
    """Whether another function has the name of one of torch's Python functions now: it is what modes are handed."""
    home = home_of(function)
    return home is not None and home.__dict__[function.__name__] is not function


@attrs.frozen
class TraceModes:
    """Autocast of all devices, as ``autocast_state`` gives it, and whether gradients are on and algorithms are
    deterministic."""

    autocast: tuple[bool | torch.dtype, ...]
    grad_enabled: bool
    deterministic: bool

    @classmethod
    def now(cls) -> TraceModes:
        """The modes of this thread."""
        return cls(autocast_state(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run as if these were the modes of this thread (autograd calls a backward with gradients off)."""
        outer = autocast_state()
        with torch.set_grad_enabled(self.grad_enabled), deterministic_algorithms(self.deterministic):
            set_autocast_state(self.autocast)
            try:
                yield
            finally:
                set_autocast_state(outer)


@contextlib.contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Within it algorithms are deterministic, or need not be, whatever the program asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    if before == enabled:
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


@contextlib.contextmanager
def attention_by(kernel: str) -> Iterator[None]:
    """Within it attention runs by one kernel (a name of ``attention_enabled``), whatever the program allows."""
    before = {name: is_enabled() for name, is_enabled in attention_enabled.items()}
    try:
        for name, set_enabled in set_attention_enabled.items():
            set_enabled(name == kernel)
        yield
    finally:
        for name, set_enabled in set_attention_enabled.items():
            set_enabled(before[name])


@contextlib.contextmanager
def autograd_by_itself() -> Iterator[None]:
    """Within it autograd records and runs on its own, as a trace needs it to.

    It calls no hooks on saved tensors, which are for what the program computes, and hands no backward to
    ``torch._dynamo.compiled_autograd``.
    """
    tracing = set_saved_tensor_hooks_traced(True)
    compiler = set_autograd_compiler(None, False)
    try:
        yield
    finally:
        set_autograd_compiler(*compiler)
        set_saved_tensor_hooks_traced(tracing)


class _Paused(threading.local):
    state: Any = None


_paused = _Paused()


def torch_function_state() -> Any:
    """Who is asked for answers to torch's functions (``__torch_function__``) in the program of this thread."""
    return function_override_state() if _paused.state is None else _paused.state


def is_hop_skipped() -> bool:
    """Whether the next function of torch is to ask nobody (``torch.overrides.redispatch_function``)."""
    return peek_redispatch is not None and peek_redispatch()


@contextlib.contextmanager
def program_asked_nothing() -> Iterator[None]:
    """Within it nobody in the program answers for torch's functions: what runs there is the compiler's own.

    Default devices are modes, too, and stay in use where there are no others.
    """
    state, outer = function_override_state(), _paused.state
    _paused.state = torch_function_state()
    states = TorchFunctionState
    set_function_override_state(states.ALL_DISABLED if has_modes() else states.SUBCLASSES_DISABLED)
    try:
        yield
    finally:
        _paused.state = outer
        set_function_override_state(state)


@contextlib.contextmanager
def program_put_aside() -> Iterator[None]:
    """Within ``program_asked_nothing``: the compiler's own classes are asked again, and no mode of the program."""
    modes = modes_in_use() if has_modes() else []
    state = function_override_state()
    for _ in modes:
        pop_off_function_modes()
    set_function_override_state(TorchFunctionState.ENABLED)
    try:
        yield
    finally:
        set_function_override_state(state)
        for mode in modes:
            push_onto_function_modes(mode)


def has_modes() -> bool:
    """Whether modes for torch's functions are in use that are more than default devices."""
    return any(type(mode) is not DeviceContext for mode in modes_in_use())


def modes_in_use() -> list[Any]:
    """Modes for torch's functions, outermost first."""
    return [function_mode_at(n) for n in range(function_mode_count())]


SETTERS: frozenset[Callable[..., Any]] = frozenset(
    {
        set_grad_enabled,
        set_forward_gradients,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled,
        *set_attention_enabled.values(),
        set_attention_order,
        torch.set_default_device,
        torch.set_default_dtype,
        *settings.setters,
    }
)
"""Functions that set a mode; a captured graph calls them where the program enters or leaves one."""


def switches_settings(graph: fx.Graph) -> bool:
    """Whether a graph switches settings of torch that are no arguments of its ops and that kernels look at."""
    return any(node.op == "call_function" and node.target in settings.setters for node in graph.nodes)


ModeValues = dict[tuple[Callable[..., Any], tuple[Any, ...]], tuple[Any, ...]]


def mode_values() -> ModeValues:
    """For every mode the setter with its leading arguments, and the value that it has now."""
    found: dict[tuple[Callable[..., Any], tuple[Any, ...]], tuple[Any, ...]] = {
        (set_grad_enabled, ()): (torch.is_grad_enabled(),),
        (set_forward_gradients, ()): (forward_gradients_enabled(),),
    }
    for device in AUTOCAST_DEVICES:
        found[torch.set_autocast_enabled, (device,)] = (torch.is_autocast_enabled(device),)
        found[torch.set_autocast_dtype, (device,)] = (torch.get_autocast_dtype(device),)
    found[torch.set_autocast_cache_enabled, ()] = (torch.is_autocast_cache_enabled(),)
    for name, setter in set_attention_enabled.items():
        found[setter, ()] = (attention_enabled[name](),)
    found[set_attention_order, ()] = (attention_order(),)
    found[torch.set_default_device, ()] = (default_device(),)
    found[torch.set_default_dtype, ()] = (torch.get_default_dtype(),)
    for setter, reader in settings.readers.items():
        found[setter, ()] = settings.values(reader)
    return found


@attrs.frozen
class ModeChanges:
    """Modes that code finds changed since its frame began."""

    inference: bool
    """Whether the code is in inference mode, and the frame was not."""
    values: tuple[tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]], ...]
    """For each other mode that changed its setter, leading arguments, and the value."""

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Run as if the frame had come to that code."""
        before = mode_values()
        with torch.inference_mode(self.inference) if self.inference else contextlib.nullcontext():
            for setter, lead, value in self.values:
                setter(*lead, *value)
            try:
                yield
            finally:
                restore_modes(before)


def restore_modes(before: ModeValues) -> None:
    """Make the modes what they were, those that are others by now."""
    now = mode_values()
    for (setter, leading), value in before.items():
        if now[setter, leading] != value:
            setter(*leading, *value)


def autocast_disabled() -> contextlib.AbstractContextManager[Any]:
    """No autocast: what comes after the trace computes on functional graphs that hold every cast already."""
    return DisableAutocast()
