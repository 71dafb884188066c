"""The text of FX graphs, one line a node; ``pipeline.graph_reader`` reads it back.

x: float32[8, 16]  = input  {requires_grad: True}
relu: float32[8, 16]  = torch.relu(%x)
mean: float32[]  = .mean(%relu, dim=0)
return (%mean,)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from turret.hooks.text.notation import constant_text, dtype_text, layout_text, name_text, value_text
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

META = ("original_aten", "captured_call", "partitioner_tag", "recompute", "ac_graph_id")
"""What the text has of ``node.meta`` beside values (see ``node_meta``); a node is of the forward if it says nothing."""


def graph_text(name: str, module: fx.GraphModule, fields: Mapping[str, Any] | None = None) -> str:
    """A graph; ``fields`` of its product are in the first line behind the name."""
    lines = [f"graph {name_text(name)}:"]
    if fields:
        lines.append(f"  with {_tail({key: value_text(value) for key, value in fields.items()}).strip()}")
    for target in dict.fromkeys(node.target for node in module.graph.nodes if node.op == "get_attr"):
        held = getattr(module, str(target), None)
        if type(held) is torch.Tensor and held.layout is torch.strided:
            lines.append(f"  constant {constant_text(str(target), held)}")
    storages: dict[int, str] = {}
    for node in module.graph.nodes:
        lines.append(f"  {node_text(node, storages)}")
    return "\n".join(lines)


def node_text(node: fx.Node, storages: dict[int, str]) -> str:
    """One node.  ``storages`` has, by its address, which input a memory was met at first."""
    if node.op == "output":
        return f"return {value_text(node.args[0], _leaf)}"
    value = node.meta.get("val", node.meta.get("example_value"))
    declared = "" if value is None else f": {described(value)}"
    named = ", ".join(f"{key}={value_text(given, _leaf)}" for key, given in node.kwargs.items())
    given = ", ".join(filter(None, [*(value_text(arg, _leaf) for arg in node.args), named]))
    called = {
        "placeholder": "input",
        "get_attr": f"attribute {node.target}",
        "call_module": f"module {node.target}({given})",
        "call_method": f".{node.target}({given})",
    }.get(node.op) or f"{function_path(node.target)}({given})"  # type: ignore[arg-type]
    facts = _input_facts(node.name, value, storages) if node.op == "placeholder" else {}
    facts |= {key: _meta_text(node.meta[key]) for key in META if node.meta.get(key) not in (None, "is_forward")}
    return f"{node.name}{declared}  = {called}{_tail(facts)}"


def described(value: Any) -> str:
    """Layouts of tensors, in brackets where there are several, and other values with their types."""
    match value:
        case torch.Tensor():
            shown = layout_text("", tuple(value.shape), _strides(value), value.dtype, value.device)
            return shown.partition(": ")[2]
        case tuple() | list():
            return f"({', '.join(map(described, value))})"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return f"{type(value).__name__.removeprefix('Sym').lower()} {value}"
        case None:
            return "none"
        case bool() | int() | float():
            return f"{type(value).__name__} {value_text(value)}"
    return type(value).__name__


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.stride()) if value.layout is torch.strided else ()


def _input_facts(name: str, value: Any, storages: dict[int, str]) -> dict[str, str]:
    """What the layout does not show of an input."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return {}
    owner = storages.setdefault(value.untyped_storage()._cdata, name)
    facts = {
        "requires_grad": value.requires_grad,
        "computed": not value.is_leaf,
        "parameter": isinstance(value, torch.nn.Parameter),
        "offset": value.storage_offset(),
        "conjugate": value.is_conj(),
        "negative": value.is_neg(),
        "shares_memory_of": "" if owner == name else owner,
    }
    return {key: value_text(fact) for key, fact in facts.items() if not isinstance(fact, (bool, int, str)) or fact}


def _meta_text(value: Any) -> str:
    return value_text(str(value) if isinstance(value, OpOverload) else value)


def _tail(facts: Mapping[str, str]) -> str:
    return f"  {{{', '.join(f'{key}: {text}' for key, text in facts.items())}}}" if facts else ""


def _leaf(value: Any) -> str | None:
    """The text of what only arguments of calls are."""
    match value:
        case fx.Node():
            return f"%{value.name}"
        case slice():
            return f"slice({', '.join(value_text(part, _leaf) for part in (value.start, value.stop, value.step))})"
        case torch.dtype():
            return f"torch.{dtype_text(value)}"
    if value is ...:
        return "..."
    plain = isinstance(value, (type, torch.device, torch.layout, torch.memory_format))
    return function_path(value) if callable(value) and not plain else None


def function_path(target: Callable[..., Any]) -> str:
    """Where Python finds a function: ``torch.ops.aten.mm.default``, ``torch.relu``, ``operator.add``."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return f"torch.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target.__name__}"
    name = getattr(target, "__name__", type(target).__name__)
    for home in (torch, torch.nn.functional):
        if getattr(home, name, None) is target:
            return f"{home.__name__}.{name}"
    name = getattr(target, "__qualname__", name)
    owner = getattr(target, "__objclass__", None)
    if owner is not None:
        return f"{owner.__module__}.{owner.__qualname__}.{target.__name__}"
    return f"{(target.__module__ or 'builtins').replace('_operator', 'operator')}.{name}"
