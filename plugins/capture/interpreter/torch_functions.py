"""Torch's functions: which go to the graph, which have their answer at capture, which change modes."""

from __future__ import annotations

import functools
import re
import types
from typing import Any

import torch

from turret.frames.trace_modes import SETTERS
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record import state
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import NOT_IN_GRAPHS, QUANTIZE, READS_DATA, Tensor
from turret.torch_compat.fakes import unset_fake_temporarily
from turret.torch_compat.operators.native_functions import FUNCTION_HOMES, TensorBase, VariableFunctions, torch_c
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_GRAPH_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._C._nn"})
_NOT_GRAPH = frozenset(
    {
        "handle_torch_function", "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic",
        "boolean_dispatch", "_get_softmax_dim", "assert_int_or_pair", "_verify_batch_size", "_unwrap_optional",
        "triplet_margin_with_distance_loss", "gaussian_nll_loss",  # they call the program, and branch on data
    }
)  # fmt: skip


def _python_methods() -> set[Any]:
    """Methods of ``torch.Tensor`` written in Python."""
    return {
        f
        for n, f in vars(torch.Tensor).items()
        if isinstance(f, types.FunctionType) and f.__globals__["__name__"] == "torch._tensor" and n not in NOT_IN_GRAPHS
    }


@functools.cache
def _graph_functions() -> frozenset[Any]:
    found: set[Any] = set(_python_methods())
    for module in (torch.nn.functional, torch.functional):
        for name, function in vars(module).items():
            if name in _NOT_GRAPH or not isinstance(function, types.FunctionType):
                continue
            if function.__globals__["__name__"] in ("torch.nn.functional", "torch.functional", "torch._jit_internal"):
                found.add(function)
    found |= {torch.sym_int, torch.sym_max, torch.sym_min, torch.sym_float, torch.sym_not, torch.sym_ite}
    return frozenset(found)


def is_graph_function(function: Any) -> bool:
    """Whether a Python function of torch is one node of the graph."""
    return function in _graph_functions()


@functools.cache
def is_torch_builtin(function: Any) -> bool:
    """Whether a builtin is one of torch's."""
    if isinstance(function, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return True
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "torch":
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__.partition(".")[0] == "torch"
    if owner is not None and getattr(owner, "__module__", "").partition(".")[0] == "torch":
        return True
    klass = getattr(function, "__objclass__", None)
    if klass is not None:
        return klass in (torch.Tensor, TensorBase)
    return owner is None and getattr(torch, getattr(function, "__name__", ""), None) is function


_READERS = re.compile(
    r"^(_?is_|_?get_(?!generator)|_cuda_get_|_?has_|_?are_|_len_|promote_types|result_type|can_cast|iinfo|finfo|_jit_|_autocast_sup)"
)
_NESTING = {torch.autocast_increment_nesting: 1, torch.autocast_decrement_nesting: -1}
_TENSOR_TESTS = frozenset({"is_tensor", "is_storage", "is_floating_point", "is_complex", "is_same_size"})


def call_torch(t: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a builtin of torch: a mode, a question, or an operation of the graph."""
    if function in SETTERS:
        return t.state.set(function, args, kwargs)
    if function in state._QUIET:
        return Constant(None)
    if function is torch.clear_autocast_cache:
        return t.state.clear_autocast_cache()
    if function in _NESTING:
        return t.state.nest(_NESTING[function])
    name = getattr(function, "__name__", "")
    klass = getattr(function, "__objclass__", None)
    if klass in (torch.Tensor, TensorBase):
        return _call_method(t, name, args, kwargs)
    values = [v.realize() for v in (*args, *kwargs.values())]
    if not any(isinstance(v, (Tensor, Symbolic)) for v in values) and _READERS.match(name):
        return _answer(t, function, name, args, kwargs)
    if name in READS_DATA or name in NOT_IN_GRAPHS:
        raise Unsupported(f"torch.{name} {READS_DATA.get(name, 'in compiled code')}")
    if name in QUANTIZE:
        hint = "keep numbers in torch.fake_quantize_per_tensor_affine, or quantize outside of the compiled function"
        raise Unsupported(f"torch.{name} makes a quantized tensor, which no graph holds", hint)
    if isinstance(function, HigherOrderOperator):
        raise Unsupported(f"the higher-order operator {function}")
    if not in_graph(function):
        raise Unsupported(f"torch's {name} in compiled code")
    return t.recorder.call(function, args, kwargs)


def _call_method(t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.Tensor.name(x, ...)``."""
    receiver = args[0].realize()
    if not isinstance(receiver, Tensor):
        raise Unsupported(f"Tensor.{name} of {receiver.describe()}")
    if receiver.patched(t, name) is not None:  # a graph calls methods by name, and would come to that one
        raise Unsupported(f"torch's own Tensor.{name}, in whose place the program put another")
    return receiver.call_method(t, name, args[1:], kwargs)


def _answer(t: Tracer, function: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What torch says now of itself or of objects that are known: the program's torch, not the tracer's."""
    with unset_fake_temporarily():
        answer = t.fold(function, args, kwargs)
    if answer.is_constant() and not kwargs and all(v.is_constant() for v in args):
        plain = tuple(v.constant() for v in args)
        with unset_fake_temporarily(), t.state.at_start():
            before = function(*plain)
        t.provenance.call(function, plain, before)
    else:
        t.provenance.bound_to_process(f"what torch.{name} answered")
    return answer


@functools.cache
def in_graph(function: Any) -> bool:
    """Whether a builtin of torch works on tensors (and not on torch itself)."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return True
    name = function.__name__
    homes = FUNCTION_HOMES
    if any(getattr(home, name, None) is not None for home in homes) and getattr(torch_c, name, None) is not function:
        return True
    return getattr(torch, name, None) is function and getattr(VariableFunctions, name, None) is not None
