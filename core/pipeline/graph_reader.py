"""Products of their text: captured and joint graphs here, loop programs and schedules as ``ir.text`` reads them.

``parse(str(product))`` is the product again, over fake tensors of its own.  Graphs whose sizes are symbols, that hold
modules or large tensors, or whose inputs share memory are printed and not read.
"""

from __future__ import annotations

import sys
from typing import Any

import attrs
import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from turret.errors import TextError
from turret.graph.ops import define_own_ops
from turret.hooks.products import CapturedGraph, JointGraph
from turret.hooks.signature import GraphSignature, InputInfo
from turret.hooks.text.graph_text import META, described
from turret.ir import LoopProgram, Schedule
from turret.ir.program import Ref
from turret.ir.reader import Names, Reader
from turret.ir.text import Line, blocks
from turret.ir.text import parse as parse_loops
from turret.pipeline.passes import give_values
from turret.pipeline.stored_graph import StoredInput, fake_input
from turret.storage.codec import record_types
from turret.storage.source_lines import new_graph_module

Product = CapturedGraph | JointGraph | LoopProgram | Schedule


def parse(text: str) -> Product:
    """The product of a text; ``TextError`` names the line that is not as expected."""
    found = blocks(text)
    kinds = [lines[0][1].split()[0] for lines in found]
    if kinds == ["graph"]:
        return _GraphReader(found[0]).graph()
    if kinds == ["signature", "graph"]:
        return _joint(found[0], _GraphReader(found[1]).graph())
    return parse_loops(text)


class _GraphReader:
    """Gathers what the lines of a graph say."""

    def __init__(self, lines: list[Line]) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        from turret.graph.fakes.corrections import CorrectedFakeTensorMode

        self.lines = lines
        self.names = Names(records={CheckpointPolicy.__name__: CheckpointPolicy})
        self.mode = CorrectedFakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self.made = fx.Graph()
        self.held = torch.nn.Module()
        self.nodes: dict[str, fx.Node] = {}
        self.said: list[tuple[fx.Node, str, Line]] = []
        self.inputs: list[Any] = []
        self.name = ""
        self.fields: dict[str, Any] = {}

    def graph(self) -> CapturedGraph:
        define_own_ops()
        self._line(self.lines[0], self._title)
        for line in self.lines[1:]:
            self._line(line, self._node)
        if not self.made.find_nodes(op="output"):
            raise TextError(f"line {self.lines[-1][0]}: the graph ends here, expected 'return ...'")
        module = new_graph_module(self.held, self.made)
        captured = CapturedGraph(module, tuple(self.inputs), self.mode, name=self.name, **self.fields)
        give_values(captured)
        for node, said, line in self.said:
            node.meta["val"] = self._as_said(node.meta["val"], said)
            given = described(node.meta["val"])
            if said and said != given:
                raise TextError(f"line {line[0]}: given {said}, expected {given}, which the call gives\n  in {line[1]}")
        return captured

    def _as_said(self, value: Any, said: str) -> Any:
        """A call's value in the strides of its line: a trace may have had it in others than the call by itself has."""
        if not isinstance(value, torch.Tensor) or said in ("", described(value)) or said[0] == "(":
            return value
        decl = Reader(f"_: {said}", 0, self.names).declaration()
        if (decl.shape, decl.dtype, decl.device) != (tuple(value.shape), value.dtype, value.device):
            return value
        with self.mode:
            return torch.empty_strided(decl.shape, decl.stride, dtype=decl.dtype, device=decl.device)

    def _line(self, line: Line, read: Any) -> None:
        Reader(line[1], line[0], self.names).read(read)

    def _title(self, line: Reader) -> None:
        line.expect("graph")
        self.name = line.name()
        line.expect(":")

    def _node(self, line: Reader) -> None:
        if line.tokens[0] == "return" and line.tokens[1:2] not in ([":"], ["="]):
            line.take()
            self.made.output(self._value(line.value(), line))
            return
        if line.accept("with", "{"):
            line.at -= 1
            sets = ("static_inputs", "steady_inputs")
            self.fields = {k: frozenset(v) if k in sets else v for k, v in line.tail().items()}
            return
        if line.next == "constant" and line.tokens[1:2] not in ([":"], ["="]):
            line.take()
            self.held.register_buffer(*line.constant())
            return
        name = line.name()
        said = _declared(line) if line.accept(":") else ""
        line.expect("=")
        if line.accept("input"):
            node = self._input(line, name, said)
        else:
            node = self._call(line, name)
            self.said.append((node, said, (line.number, line.line.strip())))
            node.meta.update(self._meta(line, line.tail()))
        self.nodes[name] = node

    def _meta(self, line: Reader, facts: dict[str, Any]) -> dict[str, Any]:
        if not facts.keys() <= set(META):
            line.fail(f"some of {', '.join(META)} in the braces before it, not {', '.join(facts.keys() - set(META))}")
        if "original_aten" in facts:
            facts["original_aten"] = self._function(line, f"torch.ops.{facts['original_aten']}")
        return facts

    def _input(self, line: Reader, name: str, said: str) -> fx.Node:
        decl = Reader(f"_: {said}", line.number, self.names).declaration()
        facts = line.tail()
        known = {
            "requires_grad": facts.pop("requires_grad", False),
            "leaf": not facts.pop("computed", False),
            "parameter": facts.pop("parameter", False),
            "offset": facts.pop("offset", 0),
        }
        stored = StoredInput(decl.shape, decl.stride, dtype=decl.dtype, device=str(decl.device), **known)
        self.inputs.append(fake_input(self.mode, stored))
        odd = facts.keys() & {"conjugate", "negative", "shares_memory_of"}
        if odd:
            line.fail(f"an input with memory and values of its own; others ({', '.join(odd)}) are printed and not read")
        node = self.made.create_node("placeholder", name, name=name)
        node.meta.update(self._meta(line, facts))
        return node

    def _call(self, line: Reader, name: str) -> fx.Node:
        method = line.accept(".")
        path = line.name("a function, a method or 'input'")
        if path == "attribute":
            return self._attribute(line, name)
        if path == "module":
            line.fail("a call of a function; graphs that hold modules are printed and not read")
        target = path if method else self._function(line, path)
        line.expect("(")
        args, named = self._value(line.arguments(), line)
        return self.made.create_node("call_method" if method else "call_function", target, args, named, name)

    def _attribute(self, line: Reader, name: str) -> fx.Node:
        target = line.name("the name of a constant")
        value = dict(self.held.named_buffers()).get(target)
        if value is None:
            line.at -= 1
            line.fail("a constant of a line before; graphs that hold modules are printed and not read")
        node = self.made.create_node("get_attr", target, name=name)
        with self.mode:
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return node

    def _function(self, line: Reader, path: str) -> Any:
        """What Python finds at a path, in a module that is imported."""
        parts = path.split(".")
        homes = (depth for depth in range(len(parts) - 1, 0, -1) if ".".join(parts[:depth]) in sys.modules)
        found: Any = sys.modules.get(".".join(parts[: (home := next(homes, 0))]))
        try:
            for part in parts[home:]:
                found = getattr(found, part)
        except (AttributeError, RuntimeError):
            found = None
        if not callable(found):
            line.at -= 1
            line.fail("a function by its path, as torch.relu or torch.ops.aten.mm.default")
        return found

    def _value(self, value: Any, line: Reader) -> Any:
        """A value with the nodes that its references name."""
        match value:
            case Ref():
                if value.name not in self.nodes:
                    raise TextError(
                        f"line {line.number}: given %{value.name}, expected a node of a line before, one of: "
                        f"{', '.join(self.nodes)}\n  in {line.line.strip()}"
                    )
                return self.nodes[value.name]
            case tuple() | list():
                return type(value)(self._value(v, line) for v in value)
            case dict():
                return {k: self._value(v, line) for k, v in value.items()}
            case slice():
                return slice(*(self._value(v, line) for v in (value.start, value.stop, value.step)))
        return value


def _declared(line: Reader) -> str:
    """The text between a colon and the sign ``=``, as ``described`` writes it."""
    first = line.line.index(":") + 1
    while line.next not in ("=", ""):
        line.take()
    return line.line[first:].partition("  = ")[0].strip()


def _joint(lines: list[Line], captured: CapturedGraph) -> JointGraph:
    """A joint graph of its signature's lines and its graph."""
    names = Names(records=record_types())
    found: dict[str, dict[int, Any]] = {"input": {}, "output": {}, "graph_output": {}}
    fields: dict[str, Any] = {}

    def read(line: Reader) -> None:
        key = line.name()
        if key == "signature":
            line.expect("(")
            fields["training"] = line.name("training or inference") == "training"
            line.expect(")", ":")
        elif key in found and line.next != ":":
            number = line.value()
            line.expect(":")
            found[key][number] = line.value()
        else:
            line.expect(":")
            fields[key] = line.value()

    for number, text in lines:
        Reader(text, number, names).read(read)
    inputs = tuple(found["input"].get(n, InputInfo()) for n in range(fields.pop("inputs", 0)))
    graph_outputs = tuple(found["graph_output"].values())
    known = {a.name for a in attrs.fields(GraphSignature)}
    if not fields.keys() <= known:
        raise TextError(f"line {lines[0][0]}: a signature has no {', '.join(fields.keys() - known)}")
    for node in captured.module.graph.nodes:
        if node.op != "output":
            node.meta.setdefault("partitioner_tag", "is_forward")
    signature = GraphSignature(inputs, tuple(found["output"].values()), graph_outputs, **fields)
    return JointGraph(captured.module, signature, len(graph_outputs), captured.fake_mode, captured.name)
