"""Graphs that raise while they run: the frame runs once more as Python, from its beginning.

A graph runs before the side effects of its frame are replayed.  Where one of its operations raises (an index out of
range, a dtype that a kernel lacks), eager would have had the effects of the lines before, and its exception would know
the line.  Nothing has happened yet, so the frame can be given to Python, which does and raises all of that.  What the
graph writes to is as it was, too: a plan leaves that to the epilogue, and a graph that ran eagerly puts back what it
can (``core/frames/eager_graphs``).
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import fx

from turret.errors import TurretError, warn
from turret.frames import frame_hook
from turret.frames.eager_graphs import left_no_writes
from turret.frames.saved_tensor_hooks import raised_by_hook
from turret.graph.autograd.freed_graphs import note_freed
from turret.graph.ops.host_math import element, float_power
from turret.graph.wrapper_tensors import Unwrap, Wrap
from turret.plan.executor import left_inputs_as_they_were
from turret.torch_compat import settings
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from turret.hooks.context import CompileContext

_FINAL = (MemoryError, torch.OutOfMemoryError, TurretError)
"""What Python would raise as well, or is not the program's."""
_EVERYDAY = (StopIteration, GeneratorExit, AttributeError, KeyError)
"""Exceptions by which Python code goes its way; what an operation on tensors raises is none of them."""
_OF_GRAPHS = frozenset(("tag_activation_checkpoint", "cond", "while_loop", "map", "map_impl", "scan", "flex_attention"))
"""Higher-order operators that do what graphs among their arguments do."""
_OWN_OPS = ("turret.packed_layers", "turret.host_math")
"""Turret's own operators in captured graphs, which act on their arguments alone."""
_PACKAGES = ("torch", "operator", "_operator", "math", "builtins")


def leaves_no_trace(root: torch.nn.Module, graph: fx.Graph) -> bool:
    """Whether a graph of ``root`` that raised has changed nothing but its inputs, except for random numbers drawn."""
    pending = [(root, graph)]
    while pending:
        owner, graph = pending.pop()
        for node in graph.nodes:
            if node.op == "get_attr":
                parts = [operator.attrgetter(str(node.target))(owner)]
            elif node.op == "call_function":
                parts = _parts(node.target)
                if not (_is_plain(node.target) or any(isinstance(p, fx.GraphModule) for p in parts)):
                    return False
            else:
                continue
            pending += [(part, part.graph) for part in parts if isinstance(part, fx.GraphModule)]
    return True


def _parts(target: Any) -> list[Any]:
    """What a function of a node is made of that is a class of capture's own: graphs, for one."""
    kind = type(target)
    return [getattr(target, field.name) for field in attrs.fields(kind)] if attrs.has(kind) else []


def _is_plain(target: Any) -> bool:
    """Whether a node's function is torch's own and acts on its arguments alone (no custom op, no collective)."""
    if isinstance(target, HigherOrderOperator):
        return target._name in _OF_GRAPHS
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).split(".")[0] in ("aten", "prims") or str(target).startswith(_OWN_OPS)
    if target in (note_freed, element, float_power) or isinstance(target, (Unwrap, Wrap)):
        return True  # autograd's graph alone learns of the first
    module = getattr(target, "__module__", None) or "torch"  # many of torch's own builtin functions have none
    functions = (types.BuiltinFunctionType, types.FunctionType, type(torch.relu), types.MethodDescriptorType)
    if not isinstance(target, functions):
        return False
    return module.partition(".")[0] in _PACKAGES or target in settings.setters  # which the graph takes back


@attrs.frozen
class RandomStates:
    """States that random numbers are drawn from on the host and on devices (by name), to go back to."""

    of_host: torch.Tensor
    of_devices: dict[str, torch.Tensor]

    def restore(self) -> None:
        torch.set_rng_state(self.of_host)
        for name, state in self.of_devices.items():
            torch.get_device_module(name).set_rng_state(state, name)


def random_states(devices: Iterable[str]) -> RandomStates:
    """What is drawn from on the host and on those of ``devices`` that ``have_random_states``."""
    told = [name for name in devices if have_random_states([name])]
    states = {name: torch.get_device_module(name).get_rng_state(name) for name in told}
    return RandomStates(torch.get_rng_state(), states)


def have_random_states(devices: Iterable[str]) -> bool:
    """Whether all of the devices, given by name, tell their random states: an accelerator of others' may not."""
    modules = (getattr(torch, name.partition(":")[0], None) for name in devices)
    return all(hasattr(module, "get_rng_state") for module in modules)


class AsPython:
    """``rerun(failure, function, values, writes)`` of rebuilt code, for one context."""

    def __init__(self, context: CompileContext) -> None:
        self.context = context

    def __call__(
        self,
        failure: list[Exception],
        function: types.FunctionType,
        values: tuple,
        writes: bool = False,
        states: RandomStates | None = None,
    ) -> Any:
        """What the frame of ``function`` with parameters ``values`` gives as Python; ``failure`` holds what was raised.

        ``writes``: the graph writes to its inputs, and may have.  ``states``: of random numbers, before it ran.  Where
        nothing is raised in Python, the graph was at fault: a warning says so, or with ``on_error="raise"`` the graph's
        exception.
        """
        written = writes and not (left_inputs_as_they_were(failure[0]) or left_no_writes(failure[0]))
        if written or isinstance(failure[0], _FINAL) or raised_by_hook(failure[0]):
            raise failure.pop()
        if states is not None:
            states.restore()
        message = f"{function.__qualname__} runs as Python: its graph raised {type(failure[0]).__name__}: {failure[0]}"
        self.context.emit("fallback", stage="run", name=function.__qualname__, message=message)
        with _exceptions() as raised:
            try:
                result = frame_hook.load().suspend(call_frame)(function, values)
            except BaseException:
                failure.clear()  # what is raised has this frame in its traceback
                raise
        if any(not issubclass(kind, _EVERYDAY) for kind in raised):
            return result  # the program has handled it
        if self.context.config.on_error == "raise":
            raise failure.pop()
        warn(f"Turret: {message}, which Python does not")
        return result


@contextlib.contextmanager
def _exceptions() -> Iterator[set[type[BaseException]]]:
    """The kinds of exceptions that pass through frames of Python meanwhile, handled or not."""
    found: set[type[BaseException]] = set()

    def watch(frame: types.FrameType, event: str, what: Any) -> Any:
        if event == "exception":
            found.add(what[0])
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield found
    finally:
        sys.settrace(before)


def call_frame(function: types.FunctionType, values: tuple) -> Any:
    """A call of a function with a value for each of its parameters, in the order of its variables."""
    code, left = function.__code__, list(values)
    positional = [left.pop(0) for _ in range(code.co_argcount)]
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    named = {name: left.pop(0) for name in names}
    if code.co_flags & inspect.CO_VARARGS:
        positional += left.pop(0)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named |= left.pop(0)
    return function(*positional, **named)
