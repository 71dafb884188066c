"""One callable of what compilers of others made, of plans and of eager calls: run, stored and loaded.

The outer graph is run as generated Python; its submodules are the compiled parts.  As plain data it is an ``Assembly``:
the outer graph's nodes, and for each part its compiler's name and what that saved of it, or Turret's own plan.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import CacheError
from turret.graph.externs import has_true_fake, op_name
from turret.graph.op_traits import is_random_op
from turret.hooks.products import BoxedCallable
from turret.pipeline import stored_graph
from turret.pipeline.graph_compilers.attributes import set_attribute
from turret.pipeline.graph_compilers.layouts import Interface, copied, input_fitter, output_fitter, sizes_of
from turret.pipeline.keys.graph_key import Unstable
from turret.plan import Plan
from turret.storage.codec import record
from turret.storage.source_lines import ExactNumbers, new_graph_module
from turret.torch_compat.operators.ops import OpOverload


@record
@attrs.frozen(eq=False)
class Part:
    """One compiled submodule as plain data: a plan, or what the plugin ``compiler`` saved (base64).

    ``eager_inputs`` are positions of inputs that eager calls gave.
    """

    name: str
    interface: Interface
    eager_inputs: tuple[int, ...]
    compiler: str = ""
    saved: str = ""
    plan: Plan | None = None


@record
@attrs.frozen(eq=False)
class Assembly:
    """One graph as parts and eager calls.

    ``nodes`` is the text of the outer graph's nodes; empty where its one part is the whole graph.  ``visible`` is how
    many of the outputs leave compiled code.  ``draws``: an eager call draws random numbers; ``untrusted``: one has a
    fake implementation of the program's own.  ``unstored``: why it cannot be stored, where that is so.
    """

    name: str
    device: str
    parts: tuple[Part, ...]
    interface: Interface
    visible: int
    nodes: str = ""
    constants: dict[str, torch.Tensor] = attrs.field(factory=dict)
    draws: bool = False
    untrusted: bool = False
    arch: str = ""
    unstored: str = ""

    def __str__(self) -> str:
        lines = [f"assembly {self.name} on {self.device}: {len(self.parts)} parts"]
        lines += [f"  {part.name}: {part.compiler or 'turret'}" for part in self.parts]
        return "\n".join(lines)


def assembled(
    name: str,
    outer: fx.GraphModule | None,
    parts: Sequence[tuple[Part, BoxedCallable]],
    interface: Interface,
    visible: int,
) -> BoxedCallable:
    """The function of a graph: its one part, or the outer graph around its parts.

    What the user sees has memory of its own, as eager's results have; what is saved for the backward may be an input or
    another output, and is else no view of one.
    """
    if outer is None:
        ((part, run),) = parts
        whose = f"{name}, compiled by {part.compiler},"
    else:
        run, whose = _outer_function(outer, parts), name
    sizes, fit = sizes_of(interface), output_fitter(interface, whose)

    def call(args: list[Any]) -> list[Any]:
        known = sizes(args)
        memories = {_memory(a): id(a) for a in args if isinstance(a, torch.Tensor)}
        with torch.no_grad():
            return _apart(fit(run(args), known), memories, visible)

    call.source = name if outer is None else outer.code  # type: ignore[attr-defined]
    return call


def _memory(value: torch.Tensor) -> int | None:
    return value.untyped_storage()._cdata if value.layout is torch.strided else None


def _apart(results: list[Any], memories: dict[int | None, int], visible: int) -> list[Any]:
    """``results`` with copies of those that lie in the memory of an input or of one before."""
    for number, value in enumerate(results):
        if isinstance(value, torch.Tensor) and (memory := _memory(value)) is not None:
            holder = memories.setdefault(memory, id(value)) if number >= visible else memories.get(memory)
            if holder is None:
                memories[memory] = id(value)
            elif holder != id(value) or number < visible:
                results[number] = copied(value, value.stride())
    return results


class _Boxed(ExactNumbers):
    """Python code of a graph that takes a list and empties it, so that inputs are freed when nothing reads them."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        names = [name.partition(":")[0].strip() for name in free_vars if name != "self"]
        unpacked = f"    {', '.join(names)}, = args_list\n" if names else ""
        return f"def forward(self, args_list){maybe_return_annotation}:\n{unpacked}    args_list.clear()"


class _Runs(torch.nn.Module):
    """A compiled part in the place of its submodule."""

    def __init__(self, part: Part, run: BoxedCallable) -> None:
        super().__init__()
        self.run = run
        self.sizes = sizes_of(part.interface)
        self.fit_inputs = input_fitter(part.interface, part.eager_inputs)
        self.fit_outputs = output_fitter(part.interface, f"{part.name}, compiled by {part.compiler or 'turret'},")

    def forward(self, *args: Any) -> list[Any]:
        given = list(args)
        sizes = self.sizes(given)
        if self.fit_inputs is not None:
            self.fit_inputs(given, sizes)
        return self.fit_outputs(self.run(given), sizes)


def _outer_function(outer: fx.GraphModule, parts: Sequence[tuple[Part, BoxedCallable]]) -> BoxedCallable:
    graph = fx.Graph()
    graph.set_codegen(_Boxed())
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(outer.graph, copies))
    root = torch.nn.Module()
    for node in outer.graph.find_nodes(op="get_attr"):
        set_attribute(root, str(node.target), operator.attrgetter(str(node.target))(outer))
    for part, run in parts:
        setattr(root, part.name, _Runs(part, run))
    return new_graph_module(root, graph).forward


def outer_nodes(outer: fx.GraphModule) -> tuple[str, dict[str, torch.Tensor]]:
    """An outer graph as plain data, with its constants.  Raises ``CacheError`` for a call that has no name."""
    constants = {
        str(n.target): operator.attrgetter(str(n.target))(outer) for n in outer.graph.find_nodes(op="get_attr")
    }
    strange = [name for name, value in constants.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise CacheError(f"{strange[0]} is no tensor")
    try:
        return stored_graph.nodes_text(outer.graph, held=True), constants
    except Unstable as error:
        raise CacheError(f"a call without a stable name: {error}") from error


def outer_of(assembly: Assembly) -> fx.GraphModule | None:
    """The outer graph again; None where the one part is the whole graph."""
    if not assembly.nodes:
        return None
    graph = stored_graph.graph_of(assembly.nodes)
    root = torch.nn.Module()
    for name, value in assembly.constants.items():
        set_attribute(root, name, value)
    for part in assembly.parts:
        setattr(root, part.name, torch.nn.Identity())
    return new_graph_module(root, graph)


def text_of(saved: bytes) -> str:
    """What a compiler saved, as text."""
    return base64.b64encode(saved).decode()


def bytes_of(text: str) -> bytes:
    """What ``text_of`` was given."""
    return base64.b64decode(text)


def eager_facts(outer: fx.GraphModule | None) -> tuple[bool, bool]:
    """Whether an eager call draws random numbers, and whether one has a fake implementation of the program's own."""
    ops = [] if outer is None else [n.target for n in outer.graph.nodes if isinstance(n.target, OpOverload)]
    return any(map(is_random_op, ops)), any(not has_true_fake(op_name(op)) for op in ops)
