"""What nodes of FX graphs carry in ``meta`` from one room to another: every key, its type, and who writes it.

A pass that makes a node need write none of these: ``"val"`` is computed where it is left out, and the others are for
what knows better.  Keys that one room keeps for itself are that room's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from turret.torch_compat.operators.ops import OpOverload

if TYPE_CHECKING:
    import sympy

    from turret.hooks.products import NodePlacement
    from turret.ir import Binding


class NodeMeta(TypedDict, total=False):
    """The keys of ``node.meta``; which are there depends on the phase."""

    val: Any
    """The node's fake value: a fake tensor, a number, a symbol, or a tuple or list of these; None where the call gives
    nothing.  Written by the joint trace (``plugins/joint``), and of captured graphs by ``core/pipeline`` before passes
    see them; by whoever makes a node later.  Read everywhere."""

    example_value: Any
    """The fake value of a captured graph's node.  Written by capture (``plugins/capture``, and torch's in
    ``contrib/dynamo``); ``core/pipeline`` makes ``"val"`` of it."""

    written: bool
    """Of a captured graph's input: the graph writes to it.  Written by capture; read where the graph runs eagerly
    (``core/frames/eager_graphs``)."""

    is_if: bool
    """Of a captured graph's ``cond``: an ``if`` of the program was captured as it.  Written by capture; read where the
    graph runs eagerly (``core/frames/eager_graphs``)."""

    stack_trace: str
    """The lines of the program that the node stems from, as a traceback prints them.  Written by capture; carried
    along by the joint trace, partition and passes; read by lowering, for sources of kernels."""

    original_aten: OpOverload
    """The operation whose decomposition made the node.  Written by the joint trace; read by placement and lowerings."""

    captured_call: str
    """What the program called that the node stems from (``graph.op_traits.called_name``).  Written by the joint trace;
    read by placement."""

    partitioner_tag: str
    """``"is_forward"`` or ``"is_backward"``.  Written by the joint trace; read by
    the partition."""

    of_backward: bool
    """Of a backward that is part of the captured graph.  Written by the joint trace; read by the partition."""

    symbol_bindings: tuple[Binding, ...]
    """The unbacked symbols that a call gives.  Written by the joint trace; read by graph compilers and lowering."""

    condition: sympy.Basic
    """What a call that asserts says of symbols.  Written by the joint trace; read by lowering."""

    unbacked_bindings: dict[sympy.Symbol, Any]
    """Torch's own record of the unbacked symbols that a captured call gives.  Written by torch's tracer; read where
    captured calls are stored or repeated."""

    recompute: Any
    """What ``torch.utils.checkpoint`` asks of the node: a ``CheckpointPolicy``, its number, or True.  Written by
    capture, and by the joint trace where a region has a policy of its own; read by the partition."""

    ac_graph_id: int
    """The checkpointed region that the node lies in.  Written by capture and the joint trace; read by the partition."""

    nn_module_stack: dict[str, Any]
    """The modules that the program was in.  Written by torch's own capture; the joint trace carries it along, as it
    does ``source_fn_stack`` and ``custom``, for passes of others."""

    source_fn_stack: list[Any]
    """The functions that the program was in, likewise."""

    custom: dict[str, Any]
    """What ``torch.fx.traceback.annotate`` put on the node, likewise."""

    _checkpoint_context_fn: Callable[..., Any]
    """Of a graph that a checkpoint runs, in the ``meta`` of its module: the program's function that makes its policy.
    Written by capture, under torch's name; read by the joint trace."""

    placement: NodePlacement
    """Where the call runs.  Written by ``core/pipeline`` for passes of the phase ``"placed"``, which may change it."""
