"""Calls over flat inputs: a captured graph whose inputs and outputs follow from the call alone, and their check.

Capture gives a graph the inputs that it happens to reach and the outputs that the code around it needs.  Here both are
told by the tensors themselves: capture hands the graph its inputs, is handed stand-ins for its outputs, and where these
turn up in the program's result is what the flat graph returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import TurretError, UnsupportedError
from turret.graph.op_traits import output_nodes, size_hint
from turret.hooks.products import CapturedGraph, PartitionedGraph
from turret.plan import size_text
from turret.plan.aliasing import sharing_check
from turret.plan.sizes import compile_sizes, size_reader
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.trees import pytree


def flat_inputs(f: Callable[..., Any], *args: Any) -> list[torch.Tensor]:
    """The tensors that a call ``f(*args)`` is given, each once: what the stages' functions take as a graph's inputs.

    The parameters and buffers of ``f`` where it is a module (or a method of one) come first, then what ``args`` hold,
    in order; a module among them stands for its parameters and buffers.
    """
    owner = getattr(f, "__self__", f)
    found: dict[int, torch.Tensor] = {}
    for leaf in (owner, *pytree.tree_leaves(args)):
        tensors = [*leaf.parameters(), *leaf.buffers()] if isinstance(leaf, torch.nn.Module) else [leaf]
        found.update((id(t), t) for t in tensors if isinstance(t, torch.Tensor))
    return list(found.values())


class Recorder:
    """Stands for the compiler of one graph: keeps the graph and what it is called with, and computes nothing."""

    def __init__(self, expected: Sequence[torch.Tensor]) -> None:
        self.expected = list(expected)
        self.captured: CapturedGraph | None = None
        self.inputs: tuple[Any, ...] = ()
        self.outputs: list[Any] = []

    def __call__(self, captured: CapturedGraph) -> Callable[..., tuple[Any, ...]]:
        if self.captured is not None:
            raise UnsupportedError("the program is more than one graph")
        self.captured = captured
        return self.call

    def call(self, *inputs: Any) -> tuple[Any, ...]:
        """Called in place of the graph."""
        assert self.captured is not None
        self.inputs = inputs
        self.outputs = [_stand_in(node) for node in output_nodes(self.captured.module.graph)]
        return tuple(self.outputs)


def _stand_in(output: Any) -> Any:
    """A tensor like a graph's output, of any content."""
    value = _known(output) if isinstance(output, fx.Node) else output
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = ([size_hint(s) for s in sizes] for sizes in (value.shape, value.stride()))
    made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _known(node: fx.Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))


def with_flat_inputs(recorder: Recorder, leaves: Sequence[Any]) -> CapturedGraph:
    """The recorded graph with the expected tensors as inputs and ``leaves``, the program's result, as outputs."""
    captured = recorder.captured
    if captured is None:
        raise UnsupportedError("nothing was captured: the program calls no operation on tensors")
    places = {id(tensor): number for number, tensor in enumerate(recorder.expected)}
    _refuse_other_inputs(recorder.inputs, places)
    graph = fx.Graph()
    given = dict(zip((id(t) for t in recorder.inputs), captured.module.graph.find_nodes(op="placeholder"), strict=True))
    nodes: dict[fx.Node, fx.Node] = {}
    examples = dict(zip((id(t) for t in recorder.inputs), captured.example_inputs, strict=True))
    for number, tensor in enumerate(recorder.expected):
        if id(tensor) in given:
            nodes[given[id(tensor)]] = graph.node_copy(given[id(tensor)])
        else:
            examples[id(tensor)] = captured.fake_mode.from_tensor(tensor, static_shapes=True)
            graph.placeholder(f"unused_{number}").meta["val"] = examples[id(tensor)]
    for node in captured.module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            nodes[node] = graph.node_copy(node, nodes.__getitem__)
    placeholders = dict(zip(places, graph.find_nodes(op="placeholder"), strict=True))
    graph.output(_outputs(recorder, leaves, nodes, placeholders))
    return attrs.evolve(
        captured,
        module=new_graph_module(captured.module, graph),
        example_inputs=tuple(examples[id(tensor)] for tensor in recorder.expected),
        static_inputs=frozenset(places[id(recorder.inputs[n])] for n in captured.static_inputs),
        steady_inputs=frozenset(places[id(recorder.inputs[n])] for n in captured.steady_inputs),
        real_inputs=(),
    )


def _refuse_other_inputs(inputs: Sequence[Any], places: dict[int, int]) -> None:
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(
                f"the graph takes the number {value!r} as an input: leave numbers constant (dynamic=False)"
            )
        if id(value) not in places:
            raise UnsupportedError(
                f"the program reaches a tensor of shape {list(value.shape)} otherwise than by its arguments: "
                "hand it, or the module that it belongs to, over as one"
            )


def _outputs(
    recorder: Recorder, leaves: Sequence[Any], nodes: dict[fx.Node, fx.Node], placeholders: dict[int, fx.Node]
) -> tuple[Any, ...]:
    """What each leaf of the program's result is in the flat graph."""
    assert recorder.captured is not None
    results = output_nodes(recorder.captured.module.graph)
    made = {id(value): nodes[n] for value, n in zip(recorder.outputs, results, strict=True) if isinstance(n, fx.Node)}
    numbers = [n for n, v in zip(results, recorder.outputs, strict=True) if not isinstance(v, torch.Tensor)]
    if numbers:
        raise UnsupportedError(f"the graph gives the number {numbers[0]}, which depends on sizes or data")
    found = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif id(leaf) in made or id(leaf) in placeholders:
            found.append(made[id(leaf)] if id(leaf) in made else placeholders[id(leaf)])
        else:
            raise UnsupportedError(
                f"the result holds a tensor of shape {list(leaf.shape)} that is neither an input nor computed in the "
                "graph: hand it over as an argument"
            )
    kept = made.keys() - {id(leaf) for leaf in leaves}
    if kept:
        raise UnsupportedError(
            f"the program keeps {len(kept)} of its tensors elsewhere than in its result (an attribute, a list): return "
            "them, too"
        )
    return tuple(found)


def checked(function: Callable[..., Any], parts: PartitionedGraph) -> Callable[..., tuple[Any, ...]]:
    """``function`` for inputs that are laid out as those of ``parts``; ``TurretError`` for others."""
    signature = parts.signature
    count = len(signature.inputs) - len(signature.bases)
    examples = [node.meta["val"] for node in parts.forward.graph.find_nodes(op="placeholder")][:count]
    layouts = [_layout(value) for value in examples]
    read_sizes = size_reader(signature)
    apart = sharing_check(signature, examples, frozenset())
    assumed = _assumptions(examples)

    def call(*inputs: Any) -> tuple[Any, ...]:
        if len(inputs) != count:
            raise TurretError(f"{parts.name} takes {count} inputs (turret.flat_inputs lists them); given {len(inputs)}")
        for number, (value, example) in enumerate(zip(inputs, examples, strict=True)):
            _check_kind(number, value, example, signature.inputs[number].requires_grad)
        sizes = read_sizes(inputs)
        for number, (value, layout) in enumerate(zip(inputs, layouts, strict=True)):
            expected = layout(sizes)
            if (tuple(value.shape), tuple(value.stride())) != expected:
                raise TurretError(
                    f"input {number} has shape {list(value.shape)} and strides {list(value.stride())}; it was traced "
                    f"with {list(expected[0])} and {list(expected[1])}: trace again for these"
                )
        if broken := [text for text, holds in assumed if not holds(sizes)]:
            raise TurretError(f"{parts.name} was traced for sizes with {broken[0]}, now {sizes}: trace again for these")
        if apart is not None and not apart(inputs):
            raise TurretError(
                f"inputs of {parts.name} share memory, one of them written to, in another way than traced"
            )
        return tuple(function(*inputs))

    return call


def _layout(value: torch.Tensor) -> Callable[[Any], tuple[Any, ...]]:
    """``layout(sizes)``: shape and strides that an input must have."""
    from turret.ir.index import size_of_inputs

    rank = value.dim()
    read = compile_sizes(tuple(size_text(size_of_inputs(s)) for s in (*value.shape, *value.stride())))

    def layout(sizes: Any) -> tuple[Any, ...]:
        numbers = read(sizes)
        return tuple(numbers[:rank]), tuple(numbers[rank:])

    return layout


def _assumptions(examples: Sequence[Any]) -> list[tuple[str, Callable[[Any], bool]]]:
    """What the trace assumed of sizes that are symbols, each as text and as a question about a call's sizes."""
    modes = (getattr(value, "fake_mode", None) for value in examples)
    env = next((mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None), None)
    if env is None:
        return []
    ranges = [c for s, b in env.var_to_range.items() for c in (s >= b.lower, s <= b.upper)]
    found = [*(guard.expr for guard in env.guards), *ranges]
    known = [env.replace(expr) for expr in found]
    return [(str(expr), functools.partial(_may_hold, expr)) for expr in known if expr.free_symbols]


def _may_hold(expr: Any, sizes: Any) -> bool:
    """Whether an assumption holds of sizes, or is about others."""
    return bool(expr.xreplace({s: sizes[s.name] for s in expr.free_symbols if s.name in sizes}) != False)  # noqa: E712


def _check_kind(number: int, value: Any, example: torch.Tensor, differentiated: bool) -> None:
    """Refuse another dtype, device or rank, and a gradient that the trace knows nothing of."""
    if not isinstance(value, torch.Tensor):
        raise TurretError(f"input {number} is a {type(value).__name__}; expected a tensor")
    given, wanted = ((v.dtype, v.device.type, v.dim(), v.is_conj()) for v in (value, example))
    if given != wanted:
        names = "dtype, device, rank and whether conjugate"
        raise TurretError(f"input {number} has {names} {given}; it was traced with {wanted}: trace again for these")
    if value.requires_grad and not differentiated and torch.is_grad_enabled():
        raise TurretError(f"input {number} requires a gradient, and did not when it was traced: trace again with one")
