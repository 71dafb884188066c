"""Facts about calls in an ATen graph that several stages rely on: views, effects, randomness, storage.

All facts come from the op's schema and tags, so custom ops are answered for as well as ATen's own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from turret.torch_compat.autograd import CreationMeta, creation_meta_of
from turret.torch_compat.operators.library import fake_registry
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EFFECT_NAMES = (
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "_print",
    "_linalg_check_errors",
)


_REFUSE_BY_DATA = _names(
    """
    index index_select index_add index_copy index_fill index_put index_reduce gather take put scatter scatter_add
    scatter_reduce masked_scatter embedding _embedding_bag _embedding_bag_forward_only searchsorted nll_loss_forward
    nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward binary_cross_entropy max_unpool2d max_unpool3d
    segment_reduce bincount histc histogram _histogramdd_bin_edges _ctc_loss multinomial _linalg_eigh _linalg_svd
    linalg_eig linalg_eigvals linalg_lstsq linalg_pinv cholesky cholesky_inverse lu_unpack
    fake_quantize_per_channel_affine_cachemask
    """
)
"""Ops of ATen that raise for some values of their tensors: an index out of range, a probability over 1, a NaN.

Factorizations that may be told to raise (``check_errors``) are among them, too.
"""


LAYOUT_CHANGES = _names("as_strided_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_")
"""Methods that change a tensor's layout in place, each the name of a view's method and an underscore."""


def becomes_a_view(method: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor that a program made becomes a view of what it was, where a method changes its layout in place.

    Autograd goes through views of fake tensors by making them again, and does not know of such a change: views of the
    tensor would be of other elements, or of none.  A new view in its place has all steps.
    """
    if method not in LAYOUT_CHANGES:
        return False
    if tensor._base is not None:
        return creation_meta_of(tensor) == CreationMeta.DEFAULT  # of others eager refuses it
    is_plain = method == "as_strided_" or not tensor.requires_grad  # which no view of it would have to be told of
    return not is_plain and torch.is_grad_enabled() and not tensor.is_leaf


def laid_out(method: str, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The view that a tensor becomes where such a method changes its layout.

    Autograd asks for the history of a view anew, so that it has one where gradients are not recorded, too.
    """
    with torch.set_grad_enabled(tensor.requires_grad or torch.is_grad_enabled()):
        made: torch.Tensor = getattr(tensor, method[:-1])(*args, **kwargs)
    if not made.is_inference():
        torch.autograd.graph.increment_version(made)  # so that a backward that has saved the tensor says so
    return made


@functools.cache
def is_view_op(target: Any) -> bool:
    """Whether an op's result shares storage with an argument that it does not write to."""
    if not isinstance(target, OpOverload):
        return False
    schema = target._schema
    returned = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return returned and not schema.is_mutable


@functools.cache
def looks_at_memory(target: Any) -> bool:
    """Whether a call looks at the memory of what it is given, where an equal value may lie elsewhere or otherwise."""
    name = target._schema.name if isinstance(target, OpOverload) else ""
    return name.split("::")[-1] in ("as_strided", "as_strided_scatter")


def written_tensors(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among a call's arguments that its op writes to, lists of them included."""
    found: list[torch.Tensor] = []
    for number, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [
                v for v in (given if isinstance(given, (list, tuple)) else (given,)) if isinstance(v, torch.Tensor)
            ]
    return found


def overload_of(node: fx.Node) -> OpOverload:
    """The op that a node calls; ``TypeError`` for a call of anything else."""
    if not isinstance(node.target, OpOverload):
        raise TypeError(f"{node.name} calls {node.target!r}, expected an overload of an op (torch.ops.aten.add.Tensor)")
    return node.target


@functools.cache
def is_random_op(target: Any) -> bool:
    """Whether running an op twice gives two different results (it draws from a generator)."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@functools.cache
def is_mutating_op(target: Any) -> bool:
    """Whether an op writes to one of its arguments."""
    return isinstance(target, OpOverload) and target._schema.is_mutable


_COLLECTIVES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "symm_mem"))
"""Namespaces of the ops that talk to other processes, and of waiting for what they say."""


def is_collective(target: Any) -> bool:
    """Whether an op talks to other processes, or waits for them.

    All processes call the same ones in the same order: none is dropped, merged, run again or put before another, which
    another process, with other sizes or other uses of the result, might do otherwise.
    """
    return isinstance(target, OpOverload) and target.namespace in _COLLECTIVES


def is_wait(target: Any) -> bool:
    """Whether an op waits for a collective that was begun before."""
    return is_collective(target) and target._schema.name.endswith("::wait_tensor")


@functools.cache
def _has_effect(target: Any) -> bool:
    if isinstance(target, OpOverload):
        name = target._schema.name.split("::")[-1]
        return target._schema.is_mutable or name.startswith(_EFFECT_NAMES) or is_collective(target)
    return isinstance(target, HigherOrderOperator)


def has_registered_effect(target: Any) -> bool:
    """Whether a custom op was said to have an effect (``register_effect``), which may be said at any time."""
    if not isinstance(target, OpOverload) or target.namespace == "aten":
        return False
    effect = getattr(fake_registry.find(target._name), "effect", None)
    return effect is not None and effect.effect is not None


def is_effectful(node: fx.Node) -> bool:
    """Whether a node must run exactly once even when nobody reads its result: it writes, asserts, prints or may raise.

    That an op may raise, or takes numbers from a generator that later draws go on with, counts where nobody reads the
    result: whoever does read it runs it.
    """
    if node.op == "call_function":
        effect = _has_effect(node.target) or has_registered_effect(node.target)
        draws = is_random_call(node) and advances_generator(node.target)
        return effect or (not node.users and (draws or may_refuse_data(node)))
    return node.op in ("call_module", "call_method")


def advances_generator(op: Any) -> bool:
    """Whether an op draws as eager does, so that the next draw goes on from there; ``turret::seed`` does not."""
    return is_random_op(op) and op._schema.name != "turret::seed"


_GENERATOR_STATE = frozenset(("turret::rng_state", "turret::set_rng_state", "turret::manual_seed"))


def names_generator_state(module: fx.GraphModule) -> bool:
    """Whether a graph reads or sets the state of the default generator, which its draws are then eager's for."""
    graphs = (inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule))
    targets = (node.target for graph in graphs for node in graph.nodes)
    return any(isinstance(op, OpOverload) and op._schema.name in _GENERATOR_STATE for op in targets)


@functools.cache
def refuses_data(op: Any) -> bool:
    """Whether an op raises for some values of its tensors, whatever their dtypes."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    checks = any(argument.name == "check_errors" for argument in op._schema.arguments)
    return checks or op._schema.name.split("::")[-1] in _REFUSE_BY_DATA


def may_refuse_data(node: fx.Node) -> bool:
    """Whether a call raises for some values of its tensors, and not for others."""
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return False
    if refuses_data(node.target):
        return True
    from turret.graph.scalar_ops import aten_ops  # the table is not needed in a warm start

    name = node.target._schema.name.split("::")[-1]
    divides = name in ("div", "floor_divide") or (name in aten_ops() and aten_ops()[name].checks_zero)
    if not divides or not (isinstance(node.args[1], fx.Node) or node.args[1] == 0):
        return False
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and not value.dtype.is_complex


def erase_unread(graph: fx.Graph) -> bool:
    """Erase calls and constants that nobody reads and that have no effect; returns whether there were any."""
    changed = False
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "get_attr") and not is_effectful(node):
            graph.erase_node(node)
            changed = True
    return changed


CAPTURED_CALL = "captured_call"
"""Key of a node's ``meta``: what the program called that the node stems from, as ``called_name`` has it."""


def called_name(target: Any) -> str:
    """``namespace::name`` of what a captured graph calls; functions and methods of torch's are those of ATen."""
    if isinstance(target, OpOverload):
        return target._schema.name
    if isinstance(target, OpOverloadPacket):
        return target._qualified_op_name
    return f"aten::{target if isinstance(target, str) else getattr(target, '__name__', '')}"


SYMBOL_BINDINGS = "symbol_bindings"
"""Key of a node's ``meta``: the unbacked symbols that the call gives (``ir.Binding``)."""


def defines_unbacked_symbols(node: fx.Node) -> bool:
    """Whether a call gives numbers that are known once it has run: it has to run once, where the trace has it."""
    return SYMBOL_BINDINGS in node.meta


def is_view(node: fx.Node) -> bool:
    """Whether a node's tensor shares storage with its first tensor argument."""
    return node.op == "call_function" and is_view_op(node.target)


def view_base(node: fx.Node) -> fx.Node | None:
    """The argument whose storage a view shares, or None when the node is not a view."""
    if not is_view(node):
        return None
    for value, argument in zip(node.args, overload_of(node)._schema.arguments, strict=False):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def _passes_on(node: fx.Node) -> bool:
    """Whether the result lies in the first argument's memory though the call is no view: ``copy_``, items of views."""
    of_views = node.target is operator.getitem and is_view(node.all_input_nodes[0])
    return of_views or node.target is torch.ops.aten.copy_.default


def storage_root(node: fx.Node) -> fx.Node:
    """The node that owns the storage of a node's tensor: follows views, ``getitem`` of views, and ``copy_``."""
    while True:
        base = view_base(node)
        if base is None and _passes_on(node):
            base = node.all_input_nodes[0]
        if base is None:
            return node
        node = base


def storage_roots(nodes: Iterable[Any]) -> set[fx.Node]:
    """Storage roots of all the nodes among ``nodes``; constants and None are skipped."""
    return {storage_root(n) for n in nodes if isinstance(n, fx.Node)}


def output_nodes(graph: fx.Graph) -> tuple[Any, ...]:
    """The flat outputs of a graph that returns one tuple or list: nodes, constants or None."""
    (result,) = graph.output_node().args
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def tensor_bytes(value: Any, default_size: int = 64) -> int:
    """Bytes of a fake value's elements; unbacked or unhinted symbolic sizes count as ``default_size``.

    Lists and tuples are summed; anything else than a tensor or a container counts 8 bytes (a size).
    """
    if isinstance(value, torch.Tensor):
        return size_hint(value.numel(), default_size) * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(tensor_bytes(v, default_size) for v in value)
    return 8


def has_static_size(value: Any) -> bool:
    """Whether a tensor's number of elements is a plain int."""
    return isinstance(value, torch.Tensor) and isinstance(value.numel(), int)


def size_hint(size: Any, default: int = 64) -> int:
    """The int of a size: itself, the hint of a SymInt, or where it has none a guess that is one of a size.

    The guess is its value with ``default`` for each symbol, or with 1 where that is no size (``6 - n``)."""
    if isinstance(size, int):
        return size
    node = getattr(size, "node", None)
    if node is None:
        return default
    if node.has_hint():
        return int(node.hint)
    import sympy  # a warm start asks for no hint, and needs no sympy

    for guess in (default, 1):
        value = node.expr.xreplace(dict.fromkeys(node.expr.free_symbols, sympy.Integer(guess)))
        if value.is_Integer and value > 0:
            return int(value)
    return default


@functools.cache
def has_custom_code(target: Any) -> bool:
    """Whether a call runs code that Turret knows nothing about: a custom or higher-order op."""
    if isinstance(target, OpOverload):
        return target.namespace not in ("aten", "prims", "turret")
    return isinstance(target, HigherOrderOperator)


def is_random_call(node: fx.Node) -> bool:
    """Whether this call draws random numbers: attention without dropout carries the tag but draws none."""
    if node.op != "call_function" or not is_random_op(node.target):
        return False
    arguments = overload_of(node)._schema.arguments
    position = next((n for n, argument in enumerate(arguments) if argument.name == "dropout_p"), None)
    if position is None:
        return True
    default = arguments[position].default_value
    dropout = node.args[position] if len(node.args) > position else node.kwargs.get("dropout_p", default)
    return bool(dropout != 0.0)


def is_pure_call(node: fx.Node) -> bool:
    """Whether a call may be run again, merged with an equal call, or dropped when unread."""
    pure = node.op == "call_function" and not is_effectful(node) and not is_random_call(node)
    return pure and not defines_unbacked_symbols(node)
