"""Captured graphs cut into sections, each a graph that is compiled by itself, and what joins them again.

A cut lies between two calls.  It is made where nothing crosses but plain tensors that nobody writes to afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.frames.eager_graphs import note_writes
from turret.frames.trace_modes import ModeValues, mode_values, restore_modes
from turret.graph.lazy_module import lazy_module
from turret.graph.op_traits import output_nodes
from turret.hooks.products import CapturedGraph
from turret.torch_compat.dispatch import enable_python_dispatcher
from turret.torch_compat.fakes import FakeTensor

_CALLS = ("call_function", "call_method", "call_module")


@attrs.frozen(eq=False)
class Section:
    """A part of a captured graph: ``inputs`` and ``outputs`` name values of the whole graph."""

    graph: CapturedGraph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    writes: bool
    """Whether it, or one before it, writes to an input of the whole graph."""


class Trial(fx.Interpreter):
    """One run on fake tensors, which tells what each call gives, and what is written to after which call."""

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, garbage_collect_values=False)
        self.captured = captured
        self.results: dict[fx.Node, Any] = {}
        self.numbers: dict[fx.Node, int] = {}
        """Positions of calls."""
        self.changed: set[fx.Node] = set()
        """Calls that leave other modes than the graph begins with."""
        self.modes: dict[fx.Node, ModeValues] = {}
        """The modes that each call leaves."""
        self.writes: dict[int, int] = {}
        """The last position at which a memory was written to."""
        self.input_writes: list[int] = []
        """Positions of calls that write to memory of inputs."""
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        self._inputs: set[int] = set()
        self.before: ModeValues = {}
        """The modes that the graph begins with."""
        self._position = 0

    def try_out(self) -> bool:
        """Whether the graph ran."""
        with self.captured.fake_mode, torch.set_grad_enabled(self.captured.grad_enabled), enable_python_dispatcher():
            self.before = mode_values()
            try:
                inputs = [_alike(v) if isinstance(v, torch.Tensor) else v for v in self.captured.example_inputs]
                self.run(*inputs, enable_io_processing=False)
            except Exception:  # what the stages make of such a graph they say themselves
                return False
            finally:
                restore_modes(self.before)
        return True

    def run_node(self, node: fx.Node) -> Any:
        result = self.results[node] = super().run_node(node)
        if node.op == "placeholder":
            self._meet(result, self._inputs)
        elif node.op in _CALLS:
            modes = self.modes[node] = mode_values()
            if modes != self.before:
                self.changed.add(node)
            for key, (tensor, version) in list(self._versions.items()):
                if tensor._version != version:
                    self._versions[key] = tensor, tensor._version
                    self._note_write(_memory(tensor))
            self._meet(result, None)
            self.numbers[node] = self._position
            self._position += 1
        return result

    def may_cut(self, place: int, calls: Sequence[fx.Node]) -> bool:
        """Whether what comes before a call and what comes from there on may be two graphs."""
        later = set(calls[place:])
        differentiates = any(call.target is torch.autograd.grad for call in later)
        for call in calls[:place]:
            if all(user.op == "output" for user in call.users) or later.isdisjoint(call.users):
                continue  # it is handed out, and not read
            result = self.results[call]
            if type(result) is not FakeTensor or result.layout is not torch.strided:
                return False
            if self.writes.get(_memory(result), -1) >= place or (differentiates and result.requires_grad):
                return False
        return True

    def _note_write(self, memory: int) -> None:
        self.writes[memory] = self._position
        if memory in self._inputs:
            self.input_writes.append(self._position)

    def _meet(self, value: Any, memories: set[int] | None) -> None:
        if isinstance(value, (tuple, list)):
            for item in value:
                self._meet(item, memories)
        elif isinstance(value, torch.Tensor) and not value.is_inference():
            self._versions.setdefault(id(value), (value, value._version))
            if memories is not None:
                memories.add(_memory(value))


def _alike(value: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory with a count of writes of its own."""
    made = value.data
    if not value.requires_grad:
        return made
    made.requires_grad_()
    return made if value.is_leaf else made.view_as(made)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def calls_of(captured: CapturedGraph) -> list[fx.Node]:
    """What a captured graph calls, in order."""
    return [node for node in captured.module.graph.nodes if node.op in _CALLS]


def section(captured: CapturedGraph, trial: Trial, calls: Sequence[fx.Node]) -> Section:
    """Some calls of a graph, one after the other, as a graph."""
    inside = set(calls)
    read = dict.fromkeys(s for call in calls for s in call.all_input_nodes if s not in inside and s.op != "get_attr")
    outputs = tuple(call for call in calls if not inside.issuperset(call.users))
    placeholders = [node for node in captured.module.graph.nodes if node.op == "placeholder"]
    position = {node: n for n, node in enumerate(placeholders)}
    given = [position.get(node) for node in read]
    examples = captured.example_inputs
    made = attrs.evolve(
        captured,
        module=lazy_module(captured.module, _copied(tuple(read), calls, outputs), "Section"),
        example_inputs=tuple(
            trial.results[node] if number is None else examples[number]
            for node, number in zip(read, given, strict=True)
        ),
        static_inputs=_renumbered(captured.static_inputs, given),
        steady_inputs=_renumbered(captured.steady_inputs, given),
        real_inputs=(),
        gradient_buckets=None,
        name=f"{captured.name}_{calls[0].name}",
    )
    return Section(
        made, tuple(read), outputs, min(trial.input_writes, default=len(trial.numbers)) <= trial.numbers[calls[-1]]
    )


def _copied(inputs: Sequence[fx.Node], calls: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Graph:
    """Calls as a graph of their own, with constants that they read."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for call in calls:
        for source in call.all_input_nodes:
            if source not in copies:
                copies[source] = graph.node_copy(source)
        copies[call] = graph.node_copy(call, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return graph


def _renumbered(positions: frozenset[int], given: Sequence[int | None]) -> frozenset[int]:
    return frozenset(new for new, old in enumerate(given) if old in positions)


@attrs.frozen
class _Step:
    """A call of a section: where the values that it takes and makes lie, and which nobody reads any more."""

    function: Callable[..., Any]
    given: list[int]
    made: list[int]
    done: list[int]
    behind_write: bool

    def __call__(self, values: list[Any]) -> None:
        try:
            found = self.function(*[values[slot] for slot in self.given])
        except Exception as error:
            if not self.behind_write:
                raise
            note_writes(error, True)
            raise error.with_traceback(None) from None  # the plan that it came out of wrote to no input
        for slot, value in zip(self.made, found, strict=True):
            values[slot] = value
        for slot in self.done:
            values[slot] = None


def join(
    captured: CapturedGraph, sections: Sequence[Section], functions: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """The whole graph as a function of its flat inputs, of the functions of its sections."""
    graph = captured.module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    made = [node for section in sections for node in section.outputs]
    slots = {node: n for n, node in enumerate((*placeholders, *made))}
    results = output_nodes(graph)
    taken = [slots[node] if isinstance(node, fx.Node) else None for node in results]
    steps: list[_Step] = []
    read_later = set(taken)
    for number in range(len(sections) - 1, -1, -1):
        section = sections[number]
        given, found = ([slots[node] for node in nodes] for nodes in (section.inputs, section.outputs))
        done = [slot for slot in dict.fromkeys((*given, *found)) if slot not in read_later]
        read_later.update(given)
        steps.append(_Step(functions[number], given, found, done, number > 0 and sections[number - 1].writes))
    steps.reverse()
    empty = [None] * len(made)

    def run(*inputs: Any) -> tuple[Any, ...]:
        values = [*inputs, *empty]
        for step in steps:
            step(values)
        return tuple(result if slot is None else values[slot] for slot, result in zip(taken, results, strict=True))

    return run
