"""The graph of one capture: inputs taken by source, calls run on fake values and recorded."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

from turret.frames.guards import TensorProperties, dynamic_marks
from turret.frames.sources import (
    AttrSource,
    BoundSource,
    CallSource,
    ComputedSource,
    ItemSource,
    SizeSource,
    Source,
    WeakSource,
)
from turret.graph.distributed_tensors import is_distributed
from turret.graph.op_traits import LAYOUT_CHANGES, becomes_a_view, laid_out
from turret.graph.powers import power_with_gradient
from turret.hooks.devices import HOST
from turret.hooks.registration.blame import blamed
from turret.pipeline.keys.operators import OPERATORS, library_operator
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.facts.call_stack import Lines, as_text
from turret.plugins.capture.facts.known_data import KnownData
from turret.plugins.capture.facts.refusals import eager_error, refuse_counts, refused_call
from turret.plugins.capture.facts.refused_symbols import refuses_floats, refuses_sizes, symbols_in
from turret.plugins.capture.facts.versions import Versions
from turret.plugins.capture.record.arguments import argument_of
from turret.plugins.capture.record.fakes import check_input, fake_mode_without_gradients
from turret.plugins.capture.record.histories import FreedGraphs, HookedModules, RetainedGradients
from turret.plugins.capture.record.memory import guard_offsets, is_empty_and_new
from turret.plugins.capture.record.overflow import LEAST, MOST
from turret.plugins.capture.record.positions import check_positions
from turret.plugins.capture.record.reach import note_call
from turret.plugins.capture.record.scalar_limits import FloatsWithinLimits
from turret.plugins.capture.values.base import Constant, Tracer, Value, is_numpy_scalar
from turret.plugins.capture.values.distributed import DistributedTensor
from turret.plugins.capture.values.floats import ChangingFloat, as_scalar_tensor, computed
from turret.plugins.capture.values.index_numbers import sizes_read
from turret.plugins.capture.values.sequences import NamedTuple, Sequence, Size, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.plugins.capture.values.torch_generators import TorchGenerator
from turret.plugins.capture.values.wrappers import WrapperTensor, is_followed
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.autograd import set_version_counters
from turret.torch_compat.dispatch import enable_python_dispatcher, no_dispatch
from turret.torch_compat.fakes import (
    DynamicOutputShapeException,
)
from turret.torch_compat.fakes import Source as TorchSource
from turret.torch_compat.operators.native_functions import device_constructors
from turret.torch_compat.operators.ops import OpOverloadPacket
from turret.torch_compat.sizes import unknown_size
from turret.torch_compat.trees import pytree


@attrs.frozen
class SymbolName(TorchSource):
    """What torch's shape environment is told of where a size comes from: its text."""

    text: str = ""

    @property
    def name(self) -> str:
        return self.text


@attrs.define(eq=False)
class GraphInput:
    """One placeholder.

    ``static``: it lies where it lies now in every call.  ``steady``: it most likely does.
    """

    node: fx.Node
    source: Source
    example: Any
    static: bool
    state: tuple | None = None
    real: Any = None
    steady: bool = False


def is_buffer(source: Source) -> bool:
    """Whether a value is read from a module's buffers."""
    return isinstance(source, ItemSource) and isinstance(source.base, AttrSource) and source.base.name == "_buffers"


@attrs.define(eq=False)
class SizeBinding:
    """A size of an input, and the expression that it had when the input was made fake."""

    source: Source
    expression: Any


_GRADIENT_TRANSFORMS = ("grad", "grad_and_value", "vjp", "jacrev")


@attrs.define(eq=False)
class Subgraph:
    """A graph inside the graph; ``lifted``: for each node around it that it uses, the placeholder.

    ``transform``: the name of the transform of ``torch.func`` that is to be applied to it, or empty.
    """

    root: torch.nn.Module
    transform: str = ""
    graph: fx.Graph = attrs.field(factory=fx.Graph)
    lifted: dict[fx.Node, fx.Node] = attrs.field(factory=dict)
    last_input: fx.Node | None = None
    of_side: bool = False
    """Whether it is a side of an ``if`` of the program's, which does what the program does there."""

    def input_for(self, node: fx.Node) -> fx.Node:
        """The input that stands for a node of a graph around."""
        found = self.lifted.get(node)
        if found is None:
            found = self.lifted[node] = self.placeholder(node.name, node.meta["example_value"])
        return found

    def drop(self, node: fx.Node, instead: fx.Node | None = None) -> None:
        """Have no input for a node of a graph around, but ``instead`` of it another node of the region."""
        placeholder = self.lifted.pop(node)
        if instead is not None:
            placeholder.replace_all_uses_with(instead)
        self.graph.erase_node(placeholder)
        self.last_input = next((n for n in reversed(self.graph.nodes) if n.op == "placeholder"), None)

    def put_in_order(self, nodes: list[fx.Node]) -> None:
        """Have the inputs that stand for these, all of those there are, come in their order."""
        if list(self.lifted) == nodes:
            return
        self.lifted = {node: self.lifted[node] for node in nodes}
        behind = next((n for n in self.graph.nodes if n.op != "placeholder"), self.graph._root)
        for placeholder in self.lifted.values():
            behind.prepend(placeholder)
            self.last_input = placeholder

    def placeholder(self, name: str, example: Any) -> fx.Node:
        """A new input, behind those so far."""
        self.last_input = node = add_placeholder(self.graph, self.last_input, name, example)
        return node

    def close(self, outputs: list[Any]) -> fx.GraphModule:
        """The region as a function of its inputs that returns a tuple."""
        return self.close_with(tuple(outputs))

    def close_with(self, output: Any) -> fx.GraphModule:
        """The region as a function that returns one node, or a nest of them."""
        self.graph.output(output)
        return new_graph_module(self.root, self.graph)


def add_placeholder(graph: fx.Graph, last: fx.Node | None, name: str, example: Any) -> fx.Node:
    """A new input of a graph, behind ``last`` and before all calls."""
    with graph.inserting_before() if last is None else graph.inserting_after(last):
        node = graph.placeholder(name)
    node.target = node.name  # parameters of the graph's function are named by target: keep them apart
    node.meta["example_value"] = example
    return node


def metadata(value: torch.Tensor) -> tuple:
    """What in-place changes of a tensor's shape or state would show up in."""
    return (tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.requires_grad, value.dtype)


class GraphRecorder:
    """Builds the graph of one capture: what of it knows fx and fake tensors."""

    def __init__(self, t: Tracer) -> None:
        self.t, policy = t, t.policy
        self.devices: list[torch.device] = []
        """Default devices that the program set, innermost last."""
        self.shape_env = ShapeEnv(
            allow_scalar_outputs=policy.data_dependent, allow_dynamic_output_shape_ops=policy.data_sizes
        )
        self.fake_mode = fake_mode_without_gradients(self.shape_env)
        self.graph = self.root_graph = fx.Graph()
        self.root_module = torch.nn.Module()
        """Holds graphs that are arguments of higher-order ops."""
        self.open_regions: list[Subgraph] = []
        self._labels = itertools.count()
        self.inputs: list[GraphInput] = []
        self.bindings: list[SizeBinding] = []
        self.by_fake: dict[int, Tensor] = {}
        self.versions = Versions()
        self.known = KnownData(self.versions)
        self.sizes: dict[tuple[int, int], Value] = {}
        self.ints: dict[Source, Symbolic] = {}
        self.integers: dict[Any, None] = {}
        """Expressions over symbols that operations on tensors are given: kernels compute them in 64 bits."""
        self.floats: dict[fx.Node, Any] = {}
        """Floats that change, by the nodes of the graph that are their numbers."""
        self.float_nodes: dict[Source, fx.Node] = {}
        self.data_copies: list[tuple[torch.Tensor, int, torch.Tensor, int]] = []
        self.resized_data: list[fx.Node] = []
        self.resized_memory: list[Any] = []
        self.calls = 0
        self.made_at: dict[str, tuple[int, Lines]] = {}
        """Of calls, by their nodes' names: the step of the root frame and the lines that they were made in."""
        self.freed = FreedGraphs()
        self.retained = RetainedGradients()
        self.hooked = HookedModules()
        self.hooked_tensors: dict[int, list[Any]] = {}
        """Tensors, by id, that hooks were registered on, and the handles of those in the graph."""
        self.tags: dict[str, Any] = {}
        self.regions = 0
        self.distributed = False
        """Whether tensors of the graph are spread over processes."""
        self.last_input: fx.Node | None = None

    # Inputs.

    def placeholder(self, name: str, example: Any) -> fx.Node:
        """A new input, before all calls and after the inputs so far."""
        self.last_input = node = add_placeholder(self.root_graph, self.last_input, name, example)
        return node

    def tensor_input(
        self, real: torch.Tensor, source: Source, *, is_part: bool = False, is_static: bool = False
    ) -> Value:
        """A tensor that existed before, as an input of the graph; guarded by its properties.

        ``is_part``: of a wrapper, whose guards tell them.  ``is_static``: these say that it is the same one.
        """
        check_input(real, self.t.state.records)
        self._check_base(real)
        held = isinstance(source, BoundSource) or is_static
        static = held or (isinstance(real, torch.nn.Parameter) and not self.t.policy.fresh_parameter(source, real))
        if static and not held:
            path, source = source, WeakSource(str(source), real)
            self.t.guards.take("IS", path, others=(source,))
        dynamic = strides = frozenset[int]()
        if not static and not is_part:
            dynamic = self.t.policy.dynamic_dimensions(source, real)
            strides = self.t.policy.dynamic_strides(source, real)
        fake = self.fakify(self.of_torchs_class(real), source, dynamic, strides)
        if real.is_inference():
            self.versions.inference = True
            self.versions.given.add(fake.untyped_storage()._cdata)
        else:
            self._begin_count(fake)
        symbolic = frozenset(n for n, s in enumerate(fake.shape) if isinstance(s, torch.SymInt))
        if not is_part:
            marks = None if static else symbolic | dynamic_marks(real)
            properties = TensorProperties.of(real, symbolic, marks, any_stride=bool(dynamic or strides))
            self.t.guards.take("TENSOR", source, properties)
        node = self.placeholder(input_name(source), fake)
        steady = is_buffer(source) or hasattr(real, "_dynamo_static_input_type")
        self.inputs.append(GraphInput(node, source, fake, static, metadata(fake), real, steady))
        value = Tensor(node, fake, source, real)
        self.by_fake[id(fake)] = value
        return value

    def _begin_count(self, fake: torch.Tensor) -> None:
        """Have no write counted of a new fake: laying it where another input lies was one to torch."""
        if fake._version and fake._base is None and fake.layout is torch.strided:
            memory = fake.untyped_storage()._cdata
            others = (i.example for i in self.inputs if isinstance(i.example, torch.Tensor))
            sharing = [v for v in others if v.layout is torch.strided and v.untyped_storage()._cdata == memory]
            if sharing and not any(map(self.versions.of, sharing)):
                set_version_counters((fake,), (0,))

    def _check_base(self, real: torch.Tensor) -> None:
        """Refuse a view that is first read after a write gave its base another history than it came with."""
        base = real._base
        if base is None:
            return
        for known in self.inputs:
            if isinstance(known.real, torch.Tensor) and (known.real is base or known.real._base is base):
                fake = known.example if known.real is base else known.example._base
                if fake is not None and fake.requires_grad != base.requires_grad:
                    raise Unsupported("a view, first read after a write to its base that has a gradient")

    def of_torchs_class(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor, or one of a class that torch itself makes fakes of, in the memory of one of a program's class."""
        if type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return real
        with no_dispatch():
            made = real.detach().requires_grad_(real.requires_grad)
            if isinstance(real, torch.nn.Parameter):
                made = torch.nn.Parameter(made, real.requires_grad)
        self.t.kept.append(made)
        return made

    def fakify(self, real: torch.Tensor, source: Source, dynamic: frozenset[int], strides: frozenset[int]) -> Any:
        """The fake twin of a tensor, with symbols for its dynamic dimensions, and for strides of their own."""
        if not dynamic and not strides:
            return self.fake_mode.from_tensor(real, static_shapes=True, source=SymbolName(str(source)))
        numbers = range(real.dim())
        context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if n in dynamic else DimDynamic.STATIC for n in numbers],
            dynamic_strides=[DimDynamic.DYNAMIC if n in strides else DimDynamic.INFER_STRIDE for n in numbers],
        )
        fake = self.fake_mode.from_tensor(real, symbolic_context=context, source=SymbolName(str(source)))
        for quantity, found in (("size", fake.shape), ("stride", fake.stride())):
            for number, size in enumerate(found):
                if isinstance(size, torch.SymInt):
                    self.bindings.append(SizeBinding(SizeSource(source, number, quantity), size.node.expr))
                elif quantity == "stride":
                    self.bindings.append(SizeBinding(SizeSource(source, number, quantity), size))
        if isinstance(offset := fake.storage_offset(), torch.SymInt):
            self.bindings.append(SizeBinding(SizeSource(source, 0, "storage_offset"), offset.node.expr))
        return fake

    def dynamic_int(self, value: int, source: Source) -> Value | None:
        """An int that was seen to change, as a symbol; None for one that is a constant of the graph."""
        known = source in self.ints or self.t.policy.dynamic_int(source, value)
        return self.int_input(value, source) if known else None

    def int_input(self, value: int, source: Source, *, is_int: bool = False) -> Symbolic:
        """An int that is another one on other calls, 0 and 1 among them, as a symbol.

        ``is_int``: what the source leads to cannot be anything else.
        """
        known = self.ints.get(source)
        if known is not None:
            return known
        name = SymbolName(f"{source}" if not isinstance(source, ComputedSource) else f"{source} ({len(self.ints)})")
        symbol = self.shape_env.create_unspecified_symbol(value, name, dynamic_dim=DimDynamic.DYNAMIC)
        number = self.shape_env.create_symintnode(symbol, hint=value, source=name)
        if not is_int:
            self.t.guards.take("TYPE", source, int)
        self.bindings.append(SizeBinding(source, symbol))
        node = self.placeholder(input_name(source), number)
        self.inputs.append(GraphInput(node, source, number, False))
        self.ints[source] = made = Symbolic(node, number, source)
        return made

    def float_input(self, value: ChangingFloat) -> tuple[fx.Node, Any]:
        """The number of a float that changes, as a node and a symbol: ``item()`` of a tensor of one element."""
        known = self.float_nodes.get(value.source)
        if known is not None:
            return known, known.meta["example_value"]
        if not value.is_drawn:  # torch's code decides on symbols as if they were finite
            self.t.guards.take("SIZES", value.source, "math.isfinite({0})")
        with self.fake_mode:
            example = torch.empty((), dtype=torch.float64, device=HOST)
        given = self.placeholder(input_name(value.source), example)
        self.inputs.append(GraphInput(given, CallSource(value.source, as_scalar_tensor), example, static=False))
        number = self.shape_env.create_unbacked_symfloat()
        self.shape_env.pending_fresh_unbacked_symbols.clear()
        node = self.root_graph.create_node("call_method", "item", (given,), {})
        node.meta["example_value"] = number
        self.floats[node], self.float_nodes[value.source] = value, node
        return node, number

    def size_value(self, tensor: Tensor, dimension: int) -> Value:
        """One size of a tensor."""
        size = tensor.fake.shape[dimension]
        if not isinstance(size, torch.SymInt):
            return Constant(size)
        key = (id(tensor), dimension)
        known = self.sizes.get(key)
        if known is not None and known.number is size:
            return known
        node = self.record("call_method", "size", (self.node_here(tensor.node), dimension), {}, size)
        self.sizes[key] = made = Symbolic(node, size)
        return made

    def unknown_size(self) -> torch.SymInt:
        """A size of the result of the call that is recorded next, which data decide."""
        return unknown_size(self.shape_env)

    # Regions: graphs inside the graph.

    @contextlib.contextmanager
    def region(self, transform: str = "") -> Iterator[Subgraph]:
        """Record into a graph of its own; what it uses of the graphs around it becomes its inputs."""
        sizes, region = dict(self.sizes), Subgraph(self.root_module, transform)
        try:
            with self.within(region):
                yield region
        finally:
            self.sizes = sizes

    def transforms(self) -> list[str]:
        """The transforms of ``torch.func`` that what is recorded now is to run under, the outermost first."""
        return [region.transform for region in self.open_regions if region.transform]

    def in_side(self) -> bool:
        """Whether what is recorded now is a side of an ``if``, which runs where the program comes by."""
        return bool(self.open_regions) and all(region.of_side for region in self.open_regions)

    def gradient_transform(self) -> str:
        """One of them under which what is differentiated by requires gradients, or empty."""
        return next((name for name in self.transforms() if name in _GRADIENT_TRANSFORMS), "")

    @contextlib.contextmanager
    def within(self, region: Subgraph) -> Iterator[None]:
        """Record into a region."""
        outer, self.graph = self.graph, region.graph
        self.open_regions.append(region)
        try:
            yield
        finally:
            self.open_regions.pop()
            self.graph = outer

    def submodule(self, module: fx.GraphModule, name: str) -> fx.Node:
        """A node of this graph that stands for a graph, as an argument of a higher-order op."""
        name = f"{name}_{len(self.root_module._modules)}"
        self.root_module.add_module(name, module)
        node = self.graph.create_node("get_attr", name)
        node.meta["example_value"] = module
        return node

    def node_here(self, node: fx.Node) -> fx.Node:
        """A node of this graph, or an input of the open regions that stands for a node of a graph around them."""
        if node.graph is self.graph:
            return node
        around = [self.root_graph, *(r.graph for r in self.open_regions)]
        if node.graph not in around:
            raise Unsupported("a tensor that was made inside a transformed function and left it by a side effect")
        for region in self.open_regions[around.index(node.graph) :]:
            node = region.input_for(node)
        return node

    def label(self) -> str:
        """What tells the next call from others of the graph, the same each time that the frame is captured."""
        return f"call {next(self._labels)}"

    def call_region(self, target: Any, inputs: Iterable[fx.Node]) -> Value:
        """Record a call of a function of a region's inputs, made on the fake values of what these stand for."""
        nodes = tuple(map(self.node_here, inputs))
        try:
            examples = [node.meta["example_value"] for node in nodes]
            with self.symbolic_kernels(), self.versions.counting(target, examples):
                result = target(*examples)
        except Unsupported:
            raise
        except Exception as error:
            if blamed(error):
                raise
            first = str(error).strip().split("\n")[0]
            raise Unsupported(f"{target.__name__} on fake tensors: {type(error).__name__}: {first}") from error
        return self.result("call_function", target, nodes, {}, result)

    # Calls.

    def computed(self, function: Any, args: list[Value]) -> Value | None:
        """A number that Python computes from numbers that change, ahead of the graph; None where it cannot."""
        return computed(self.t, function, args)

    def call(self, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call of a function."""
        if not kwargs and (found := computed(self.t, target, args)) is not None:
            return found
        return self._call("call_function", target, args, kwargs)

    def call_method(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call of a method of the first argument."""
        return self._call("call_method", name, args, kwargs)

    def symbolic_kernels(self, target: Any = None) -> contextlib.AbstractContextManager:
        """Where sizes are symbols: has operations of many parts ask Python for their kernels, as C++ needs numbers."""
        is_one = getattr(target, "__name__", target) in _OF_ONE_PART
        return enable_python_dispatcher() if self.shape_env.var_to_range and not is_one else contextlib.nullcontext()

    def within_limits(self, *arguments: Any) -> FloatsWithinLimits | None:
        """Has floats that are symbols guarded to be such as operations of torch take."""
        if self.shape_env.var_to_range and any(isinstance(v, torch.SymFloat) for v in pytree.tree_leaves(arguments)):
            return FloatsWithinLimits(self.t)
        return None

    def _call(self, op: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call, of the default generator set to the state of the one that is given."""
        if "generator" in kwargs and isinstance(drawn_from := kwargs["generator"].realize(), TorchGenerator):
            plain = {name: value for name, value in kwargs.items() if name != "generator"}
            return drawn_from.draw(self.t, functools.partial(self._plain_call, op, target, args, plain))
        if "out" not in kwargs:
            return self._plain_call(op, target, args, kwargs)
        return self._write_to(kwargs["out"].realize(), op, target, args, kwargs)

    def _write_to(self, out: Value, op: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call with an argument ``out=``."""
        plain = {name: value for name, value in kwargs.items() if name != "out"}
        sized = target in device_constructors() and any(isinstance(v.realize(), Symbolic) for v in args)
        try:
            if not sized or not isinstance(out, Tensor) or not is_empty_and_new(self.t, out):
                return self._plain_call(op, target, args, kwargs)
        except Unsupported as refusal:
            of_data = isinstance(refusal.__cause__, (GuardOnDataDependentSymNode, DynamicOutputShapeException))
            if not of_data or not isinstance(out, Tensor) or not is_empty_and_new(self.t, out):
                raise
        return self._fill(out, op, target, args, plain)

    def _fill(self, out: Tensor, op: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A result of a size that depends on data, which a tensor without elements becomes: ``out=`` resizes it."""
        values = [v.realize() for v in (*args, *kwargs.values())]
        tensors = [v for v in _parts_of(values) if isinstance(v, Tensor)]
        if any(v.fake.requires_grad for v in tensors) and torch.is_grad_enabled():
            raise Unsupported("an argument out= where gradients have a part in it")
        if not tensors and target in device_constructors():
            kwargs = {"dtype": Constant(out.fake.dtype), "device": Constant(out.fake.device), **kwargs}
        made = self._plain_call(op, target, args, kwargs).realize()
        if not isinstance(made, Tensor) or (made.fake.dtype, made.fake.device) != (out.fake.dtype, out.fake.device):
            raise Unsupported("an argument out= of another type than the result, whose size depends on data")
        version = self.versions.of(out.fake)
        out.lie_where(self.t, made)
        while self.versions.of(out.fake) <= version and not out.fake.is_inference():
            torch.autograd.graph.increment_version(out.fake)
        return out

    def _plain_call(self, op: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        argument = self.argument if _computes_a_number(target, args) else self.operand
        args, kwargs = _named_in_text(args, kwargs)
        pairs = [argument(value) for value in sizes_read(self.t, target, args)]
        nodes, fakes = [node for node, _ in pairs], [fake for _, fake in pairs]
        named_nodes, named_fakes = self._named(argument, target, kwargs)
        self._note_operator(target)
        _refuse_too_large(fakes)
        refuse_counts(target, nodes, fakes)
        results = _shapes_in(named_fakes)
        operands = self.known.operands(target, fakes, named_fakes)
        kinds = {v.type() for a in args if isinstance(v := a.realize(), Tensor)}
        note_call(self.t.provenance, target, kinds)
        limited = self.within_limits(fakes, named_fakes)
        parts = _parts_of([*args, *kwargs.values()])
        relaid = self._relaid(op, target, args)
        ask = _asked if relaid is None else laid_out
        result = self._run(op, target, fakes, named_fakes, limited or contextlib.nullcontext(), parts, ask)
        if limited is not None:
            limited.assert_limits([*parts])
        if self._is_resized(results, fakes):
            self._refuse_restrided(op, target, fakes, named_fakes)
        if operands is not None:
            self.known.note(operands, result)
        if relaid is not None:
            relaid.fake = result
            relaid.node = self.record(op, target, tuple(nodes), named_nodes, result)
            self.by_fake[id(result)] = relaid
        return relaid or self.result(op, target, tuple(nodes), named_nodes, result)

    def _named(
        self, argument: Callable[[Value], tuple[Any, Any]], target: Any, kwargs: dict[str, Value]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Named arguments as nodes and as fakes, with the device of the block where a constructor is given none."""
        nodes, fakes = {}, {}
        for name, value in kwargs.items():
            nodes[name], fakes[name] = argument(self.scalar(target, name, value))
        if self.devices and target in device_constructors() and fakes.get("device") is None:
            nodes["device"] = fakes["device"] = self.devices[-1]
        return nodes, fakes

    def _relaid(self, op: str, target: Any, args: list[Value]) -> Tensor | None:
        """The tensor that a call lays out in place, where another fake takes its place (``becomes_a_view``)."""
        if op != "call_method" or target not in LAYOUT_CHANGES:
            return None
        value = args[0].realize()
        if type(value) is not Tensor or value.real is not None or value.outer is not None:
            return None
        if value.node.graph is not self.graph:  # others would not find the node that takes its place
            return None
        return value if value.fake.requires_grad and becomes_a_view(target, value.fake) else None

    def _note_operator(self, target: Any) -> None:
        if isinstance(target, OPERATORS) and not library_operator(target):
            self.t.provenance.operator(target)

    def _is_resized(self, results: list[tuple[torch.Tensor, torch.Size]], args: list[Any]) -> bool:
        """Whether a call resized an argument ``out=``, given with the shape that it had; some such are refused.

        One that lies in an input's memory would look to the graph, from its start, as the call leaves it, where there
        is no such memory yet; and of operands that are not contiguous, fake tensors do not get the strides right.
        """
        # Compared as they are written by now: the call may have found two symbols to be one.
        resized = [v for v, shape in results if [*map(str, v.shape)] != [*map(str, shape)]]
        if not resized:
            return False
        inputs = [v for v in (item.example for item in self.inputs) if isinstance(v, torch.Tensor)]
        memory = {v.untyped_storage()._cdata for v in inputs if v.layout is torch.strided}
        in_order = all(v.is_contiguous() for v in _tensors_in(args))
        if not in_order or any(v.untyped_storage()._cdata in memory for v in resized):
            raise Unsupported("an argument out= of another size than the result, which the call resizes")
        return True

    def _refuse_restrided(self, op: str, target: Any, args: list, kwargs: dict[str, Any]) -> None:
        """Refuse a call that resized an argument ``out=`` whose fake has other strides then than the call's result has
        without that argument."""
        outs = _tensors_in(kwargs.get("out"))
        if all(v.dim() < 2 for v in outs):
            return
        given = {name: value for name, value in kwargs.items() if name != "out"}
        try:
            with self.symbolic_kernels(target), torch.no_grad():
                made = getattr(args[0], target)(*args[1:], **given) if op == "call_method" else target(*args, **given)
        except Exception as error:
            raise Unsupported("an argument out= of another size than the result") from error
        if [str(v.stride()) for v in outs] != [str(v.stride()) for v in _tensors_in(made)]:
            raise Unsupported("an argument out= of another size than the result, whose strides are not known then")

    def _run(
        self,
        op: str,
        target: Any,
        fakes: list,
        named_fakes: dict[str, Any],
        limits: contextlib.AbstractContextManager,
        parts: Iterator[Value],
        ask: Callable[..., Any],
    ) -> Any:
        """What a call gives for fake values; ``parts`` are those of the program's, ``ask`` calls a method."""
        try:
            check_positions(target, fakes, named_fakes, self.known)
            guard_offsets(self.t, target, fakes)
            with self.symbolic_kernels(target), self.versions.counting(target, fakes), limits:
                made = power_with_gradient(getattr(target, "__name__", target), fakes)
                if made is not NotImplemented:
                    return made
                if op == "call_method":
                    return ask(target, *fakes, **named_fakes)
                refused = refused_call(target, fakes, named_fakes)
                if refused is None:
                    return target(*fakes, **named_fakes)
        except Unsupported:
            raise
        except Exception as error:
            if blamed(error):  # a plugin's failure is none of the operation's
                raise
            is_told = (self.t.policy.whole or self.t.call_stack.catches()) and not any(map(is_numpy_scalar, parts))
            refused = eager_error(op, target, fakes, named_fakes, error) if is_told else None
            if refused is None:
                raise self._does_not_run(target, fakes, named_fakes, error) from error
        try:
            raise self.t.raised_from(refused)  # where the fakes' error, and the frames that it keeps, are gone
        finally:
            del refused  # its context is that error, so that this frame and what the program left in it would stay

    def _does_not_run(self, target: Any, fakes: list, named_fakes: dict[str, Any], error: Exception) -> Unsupported:
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if isinstance(error, DynamicOutputShapeException):
            return Unsupported(f"the size of what {name} gives depends on data", _SIZES_OF_DATA)
        first = str(error).strip().split("\n")[0]
        unsupported = Unsupported(f"{name} does not run on fake tensors: {type(error).__name__}: {first}")
        if refuses_floats(error):
            unsupported.numbers = self._floats_of(symbols_in((fakes, named_fakes), torch.SymFloat))
        elif refuses_sizes(error):
            unsupported.numbers = self._sizes_of(symbols_in((fakes, named_fakes), torch.SymInt))
        return unsupported

    def _floats_of(self, symbols: set[Any]) -> frozenset[Source]:
        """The floats that change from which symbols come."""
        known = self.floats.items()
        changing = ((n.meta["example_value"].node.expr, v) for n, v in known if not v.is_drawn)
        return frozenset(v.source for expression, v in changing if not symbols.isdisjoint(expression.free_symbols))

    def _sizes_of(self, symbols: set[Any]) -> frozenset[Source]:
        """The sizes, strides and ints that change from which symbols come; those that data give come from none."""
        bound = ((b.expression, b.source) for b in self.bindings if isinstance(b.expression, sympy.Expr))
        return frozenset(v for e, v in bound if not symbols.isdisjoint(self.shape_env.simplify(e).free_symbols))

    def scalar(self, target: Any, name: str, value: Value) -> Value:
        """A keyword argument; a tensor where an operation takes a number is read, where that stays in the graph."""
        if name == "alpha" or (name == "value" and str(getattr(target, "__name__", target)).startswith("addc")):
            value = value.realize()
            return value.read(self.t, "item") or value if isinstance(value, Tensor) else value
        return value

    def result(self, op: str, target: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> Value:
        """The value of a call's result; a node is made unless the result is known without running it."""
        if isinstance(result, torch.Tensor):
            known = self.by_fake.get(id(result))
            node = self.record(op, target, args, kwargs, result)
            if known is not None:
                return known.outer or known
            return self.tensor(node, result)
        if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return Symbolic(self.record(op, target, args, kwargs, result), result)
        if result is None and (op == "call_function" or str(target).endswith("_")):
            if isinstance(target, OpOverloadPacket) and all(getattr(target, o)._schema.returns for o in target):
                raise Unsupported(f"{target} of numbers that change, which gives nothing for symbols")
            self.record(op, target, args, kwargs, result)
            return Constant(None)
        if isinstance(result, (tuple, list)) and _has_tensor(result):
            return self.unpacked(self.record(op, target, args, kwargs, result), result)
        return self.t.wrap_known(result)

    def unpacked(self, node: fx.Node, result: Any) -> Value:
        """A sequence of results as a sequence of values."""
        items: list[Value] = []
        for number, item in enumerate(result):
            if isinstance(item, (torch.Tensor, torch.SymInt, torch.SymFloat)) and id(item) in self.by_fake:
                seen = self.by_fake[id(item)]
                items.append(seen.outer or seen)
                continue
            if not isinstance(item, (torch.Tensor, torch.SymInt, torch.SymFloat, tuple, list)):
                items.append(self.t.wrap_known(item))
                continue
            part = self.record("call_function", operator.getitem, (node, number), {}, item)
            if isinstance(item, torch.Tensor):
                items.append(self.tensor(part, item))
            elif isinstance(item, (tuple, list)):
                items.append(self.unpacked(part, item))
            else:
                items.append(Symbolic(part, item))
        if type(result) is list:
            return self.t.new_list(items)
        if type(result) in (tuple, torch.Size):
            return Tuple(items) if type(result) is tuple else Size(items)
        return NamedTuple(items, type(result))

    def tensor(self, node: fx.Node, fake: torch.Tensor) -> Tensor:
        """The value of a new tensor."""
        if is_followed(type(fake)):
            self.distributed |= is_distributed(type(fake))
            kind = DistributedTensor if is_distributed(type(fake)) else WrapperTensor
            made = self.by_fake[id(fake)] = kind(node, fake)
            return made
        if type(fake).__name__ not in ("FakeTensor", "Parameter", "Tensor"):
            raise Unsupported(f"a tensor subclass as a result: {type(fake).__name__}")
        value = Tensor(node, fake)
        self.by_fake[id(fake)] = value
        return value

    def record(self, op: str, target: Any, args: tuple, kwargs: dict[str, Any], example: Any) -> fx.Node:
        """Add a node with its fake value and the user's stack."""
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["example_value"] = example
        self.shape_env.pending_fresh_unbacked_symbols.clear()  # of what happens inside a call nobody else hears
        node.meta.update(self.tags)
        lines = self.t.call_stack.lines()
        node.meta["stack_trace"] = as_text(lines)
        if self.graph is self.root_graph:
            self.made_at[node.name] = self.t.call_stack.step, lines
        if op != "call_method" or target != "size":
            self.calls += 1
        return node

    def operand(self, value: Value) -> tuple[Any, Any]:
        """As ``argument``, for an operation on tensors: what no 64-bit integer holds is a number to it, no symbol."""
        return argument_of(self.t, value, in_64_bits=True)

    def argument(self, value: Value) -> tuple[Any, Any]:
        """A value as an argument of a node, and as one of the call on fake values."""
        return argument_of(self.t, value, in_64_bits=False)


def _computes_a_number(target: Any, args: list[Value]) -> bool:
    """Whether a call is arithmetic on Python's numbers, which have any size."""
    module = getattr(target, "__module__", None)
    on_numbers = module in ("_operator", "math") or getattr(target, "__name__", "").startswith("sym_")
    return on_numbers and not any(isinstance(v.realize(), (Tensor, Sequence)) for v in args)


def _asked(method: str, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, method)(*args, **kwargs)


def _named_in_text(args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """Arguments of which none is named ``from``, a word of Python, which the text of a graph cannot name one by."""
    if "from" not in kwargs:
        return args, kwargs
    placed = [kwargs[name] for name in ("from", "to") if name in kwargs]
    return [*args, *placed], {name: value for name, value in kwargs.items() if name not in ("from", "to")}


def _refuse_too_large(args: list[Any]) -> None:
    """Refuse integers that 64 bits do not hold beside a tensor of others: eager takes them for unsigned, or raises."""
    large = [v for v in args if type(v) is int and not LEAST <= v <= MOST]
    if large and any(isinstance(v, torch.Tensor) and not v.dtype.is_floating_point for v in args):
        raise Unsupported(f"the integer {large[0]} as an argument of an operation on tensors of integers")


def _tensors_in(arguments: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(arguments) if isinstance(v, torch.Tensor)]


def _parts_of(values: Iterable[Value]) -> Iterator[Value]:
    """Values, and what tuples and lists among them hold."""
    for value in values:
        found = value.realize()
        yield found
        if isinstance(found, Sequence):
            yield from _parts_of(found.items)


def _shapes_in(kwargs: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Size]]:
    return [(v, v.shape) for v in _tensors_in(kwargs)] if kwargs else []


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensor, value))
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


_OF_ONE_PART = ("hardshrink", "softshrink")
"""Operations that Python has parts of, which do not check what their own kernels check."""
_SIZES_OF_DATA = "the option capture_dynamic_output_shape_ops=True keeps such sizes in the graph"
_STATE_DICTS = ("_modules", "_parameters", "_buffers")


def input_name(source: Source) -> str:
    """A name that a person recognises: the last steps of the source, without the dicts that modules keep state in."""
    words = [w for w in re.findall(r"\w+", str(source)) if w not in _STATE_DICTS]
    text = "_".join(words).lower()[-60:].strip("_")
    return text if text.isidentifier() else f"in_{text}"
