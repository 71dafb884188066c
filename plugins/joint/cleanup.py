"""What tracing leaves behind and no later stage wants."""

from __future__ import annotations

import operator

import torch
from torch import fx

from turret.op_traits import is_effectful

_TRANSPARENT = frozenset(
    (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)
)


def clean(module: fx.GraphModule) -> None:
    """Drop dead nodes, effect tokens, and nodes that hand their input on (a functional graph's detach does)."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _TRANSPARENT:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is torch.ops.higher_order.with_effects:
            _without_token(graph, node)
    _drop_token_inputs(graph)
    graph.eliminate_dead_code(is_impure_node=_must_stay)
    module.recompile()


def _drop_token_inputs(graph: fx.Graph) -> None:
    """Tokens found during the trace became inputs; the trace's own inputs all come before its first call."""
    calls = False
    for node in list(graph.nodes):
        if node.op == "placeholder" and calls and not node.users:
            graph.erase_node(node)
        calls |= node.op == "call_function"


def _must_stay(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or is_effectful(node)


def _without_token(graph: fx.Graph, node: fx.Node) -> None:
    """``with_effects(token, op, *args)`` as the call itself: later stages keep effects in order without tokens."""
    _, op, *args = node.args
    with graph.inserting_before(node):
        call = graph.call_function(op, tuple(args), dict(node.kwargs))
    call.meta = {k: v for k, v in node.meta.items() if k != "val"}
    results = node.meta["val"][1:]
    single = len(op._schema.returns) == 1
    call.meta["val"] = (results[0] if single else tuple(results)) if op._schema.returns else None
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] > 0:
            user.replace_all_uses_with(call if single else _part(graph, call, user))
            graph.erase_node(user)
    for user in list(node.users):
        _drop_token(user)
        graph.erase_node(user)
    graph.erase_node(node)


def _part(graph: fx.Graph, call: fx.Node, user: fx.Node) -> fx.Node:
    with graph.inserting_before(user):
        part = graph.call_function(operator.getitem, (call, user.args[1] - 1))
    part.meta = dict(user.meta)
    return part


def _drop_token(token: fx.Node) -> None:
    """A token's readers are other calls with effects, which lose it in turn."""
    for reader in list(token.users):
        reader.args = tuple(None if a is token else a for a in reader.args)
