"""The walk over one ATen graph: each node's lowering runs once, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch import fx

from turret.errors import UnsupportedError, VerificationError
from turret.graph.externs import op_name
from turret.graph.op_set import Family, family_of, is_compiled_dtype
from turret.graph.op_traits import (
    SYMBOL_BINDINGS,
    advances_generator,
    has_registered_effect,
    is_collective,
    may_refuse_data,
    refuses_data,
)
from turret.graph.ops.control_flow import CONTROL_FLOW
from turret.graph.ops.host_scalars import expression
from turret.hooks.products import NodePlacement, Placement, StageGraph
from turret.hooks.registration.blame import blaming, owner
from turret.ir import (
    CopyInto,
    Definition,
    Extern,
    LoopProgram,
    Number,
    Ref,
    Scatter,
    SizeSource,
    Statement,
    TensorDecl,
    bound_symbols,
    defined,
    mentioned_symbols,
    size,
    used,
)
from turret.ir.analysis.symbols import has_float, symbols_of_sizes
from turret.ir.index import by_names_of_inputs, computed_by_host, depends_on_data
from turret.ir.lowering import Builder, TensorValue, dense_strides, lie_alike, number_of
from turret.pipeline.branches import PlannedBranch
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload

_COMPILED = NodePlacement("compiled")
_NUMBERS = torch.SymInt | torch.SymFloat | torch.SymBool | int


def lower_graph(graph: StageGraph, placement: Placement, lowerings: Mapping[Any, Callable]) -> LoopProgram:
    """The loop program of a graph; ops without a lowering, and those placed eagerly, become extern calls."""
    return _Lowerer(graph, placement, lowerings).run()


class _Lowerer:
    def __init__(self, graph: StageGraph, placement: Placement, lowerings: Mapping[Any, Callable]) -> None:
        self.graph, self.placement, self.lowerings = graph, placement, lowerings
        self.nothing_compiled = bool(placement.nodes) and all(p.where == "eager" for p in placement.nodes.values())
        self.builder = Builder()
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[TensorDecl | None] = []
        self.symbols: dict[str, SizeSource] = {}
        self.hints: dict[str, int] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.computed: dict[Any, sympy.Symbol] = {}

    def run(self) -> LoopProgram:
        outputs: tuple[Any, ...] = ()
        inputs = [n for n in self.graph.module.graph.nodes if n.op == "placeholder"]
        for node in inputs:
            self.builder.node = node
            self.values[node] = self._input(node)
        for node in self.graph.module.graph.nodes:
            if _is_number(node) and all(map(_is_number, node.users)):
                continue  # a step of a number, which is read as one expression: a long sum has that many steps
            self._begin(node)
            self._compute_sizes(node.meta.get("val"))
            match node.op:
                case "placeholder":
                    pass
                case "get_attr":
                    self.values[node] = self._constant(node)
                case "call_function":
                    self.values[node] = self._call(node)
                case "output":
                    outputs = self._outputs(node.args[0])
                case _:
                    raise UnsupportedError(f"a node {node.op} in an ATen graph: {node.format_node()}")
        statements = _without_dead(self.builder.statements, outputs)
        _refuse_unknown_symbols(statements, frozenset(self.symbols), self.builder.statements)
        return LoopProgram(
            self.graph.name,
            tuple(self.inputs),
            statements,
            outputs,
            self.constants,
            self.symbols,
            self.hints,
            self._overwritten(statements, outputs),
        )

    def _begin(self, node: fx.Node | None) -> None:
        """Note whose value is made next.  What nobody placed is eager where nothing is compiled."""
        self.builder.node = node
        placed = None if node is None else self.placement.nodes.get(node.name)
        self.builder.eagerly = self.nothing_compiled if placed is None else placed.where == "eager"

    # ------------------------------------------------ inputs

    def _input(self, node: fx.Node) -> Any:
        number, value = len(self.inputs), node.meta["val"]
        if isinstance(value, torch.Tensor):
            decl = self.builder.declare(value, node.name)
            self.inputs.append(decl)
            self._note_sizes(value, number)
            return TensorValue.of(decl)
        self.inputs.append(None)
        if isinstance(value, torch.SymInt | torch.SymFloat):
            expression = number_of(value)
            if isinstance(expression, sympy.Symbol):
                # The number itself is a better source than a shape that happens to mention it.
                is_float = isinstance(value, torch.SymFloat)
                self.symbols[expression.name] = SizeSource(number, None, "float" if is_float else "size")
                if isinstance(value, torch.SymInt):
                    self._note_hint(expression.name, value)
            elif isinstance(value, torch.SymFloat) or _is_given(expression):
                # Who hands it over knew what it was computed from; here it is a number of its own.
                integer = isinstance(value, torch.SymInt)
                expression = sympy.Symbol(
                    self.builder.unique(f"number_{node.name}"), real=True, integer=integer or None
                )
                self.symbols[expression.name] = SizeSource(number, None, "size" if integer else "float")
            return expression
        if isinstance(value, int | float | bool | type(None)):
            return value
        raise UnsupportedError(f"input {number} is a {type(value).__name__}")

    def _note_sizes(self, value: torch.Tensor, number: int) -> None:
        """Remember where the size symbols of an input's shape and strides can be read, and of where it begins.

        What a forward saves for its backward begins elsewhere than the trace says.
        """
        for dimension, extent in enumerate(value.shape):
            self._note_size(extent, SizeSource(number, dimension))
        for dimension, extent in enumerate(value.stride()):
            self._note_size(extent, SizeSource(number, dimension, "stride"))
        if self.graph.role != "backward":
            self._note_size(value.storage_offset(), SizeSource(number, None, "offset"))

    def _note_size(self, extent: Any, source: SizeSource) -> None:
        expression = size(extent) if isinstance(extent, torch.SymInt) else None
        if isinstance(expression, sympy.Symbol):
            self.symbols.setdefault(expression.name, source)
            self._note_hint(expression.name, extent)

    def _note_hint(self, symbol: str, value: torch.SymInt) -> None:
        if value.node.has_hint():
            self.hints[symbol] = int(value.node.hint)

    def _compute_sizes(self, value: Any) -> None:
        """Have the host compute the integers in a result's sizes that come of floats."""
        if isinstance(value, list | tuple):
            for part in value:
                self._compute_sizes(part)
        elif isinstance(value, torch.Tensor):
            self._compute_sizes([*value.shape, *value.stride(), value.storage_offset()])
        elif isinstance(value, torch.SymInt):
            for symbol, expression in computed_by_host(value.node.expr).items():
                if symbol.name not in self.symbols and expression not in self.computed:
                    self.computed[expression] = symbol
                    self.builder.statements.append(Number(symbol.name, expression, origins=self.builder.origins()))

    def _constant(self, node: fx.Node) -> Any:
        value: Any = self.graph.module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, PlannedBranch):
            return value.plan
        if not isinstance(value, torch.Tensor):
            return value
        decl = self.builder.declare(value, node.name)
        self.constants[decl.name] = value.detach()
        return TensorValue.of(decl)

    # ------------------------------------------------ calls

    def _call(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.target is torch.ops.aten._assert_scalar.default:
            return self._check(node)
        if _is_number(node):
            return self._number(node, value)
        args, kwargs = self._arguments(node.args), {k: self._arguments(v) for k, v in node.kwargs.items()}
        bindings = node.meta.get(SYMBOL_BINDINGS, ())
        computed = expression(node.target, args)
        if computed is not None:
            (binding,) = bindings
            self.builder.statements.append(Number(binding.symbol, computed, origins=self.builder.origins()))
            return number_of(value)
        if isinstance(node.target, HigherOrderOperator):
            return self._control_flow(node, args, kwargs)
        if not isinstance(node.target, OpOverload):
            return self._python_call(node, args, kwargs)
        args, kwargs = self._without_conditions(args), {k: self._without_conditions(v) for k, v in kwargs.items()}
        if node.target is torch.ops.aten.copy_.default:
            return self._copy_into(args)
        if not node.users and may_refuse_data(node):
            return self.builder.extern(node.target, args, kwargs, (), "nobody reads its result, but it may raise")
        return self._op(node, args, kwargs)

    def _control_flow(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if op_name(node.target) not in CONTROL_FLOW:
            raise UnsupportedError(f"the higher-order op {op_name(node.target)} in a compiled graph")
        bindings = node.meta.get(SYMBOL_BINDINGS, ())
        return self.builder.extern(node.target, args, kwargs, node.meta.get("val"), "control flow", bindings)

    def _op(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """A call of an op on tensors: by its lowering, where it has one that takes the call, else as a call."""
        value, bindings = node.meta.get("val"), node.meta.get(SYMBOL_BINDINGS, ())
        placed = self.placement.nodes.get(node.name, _COMPILED)
        reason = placed.reason
        # A view computes nothing, so it is never a call: a call would address memory as the trace laid it out.
        is_view = family_of(node.target) is Family.VIEW
        lowering = self.lowerings.get(node.target) if placed.where == "compiled" or is_view else None
        if lowering is not None and (is_view or self._dtypes_fit(args, value)):
            result = lowering(self.builder, *args, **kwargs)
            if result is not NotImplemented:
                if plugin := owner(lowering):
                    with blaming(plugin):
                        _check_result(node, result, value)
                return result
            reason = reason or self.builder.reason or "its lowering leaves this call whole"
            self.builder.reason = ""
        if isinstance(node.target, OpOverload) and not node.target._schema.is_mutable:
            args, kwargs = self._as_traced(node.args, args), self._as_traced(node.kwargs, kwargs)
        return self.builder.extern(node.target, args, kwargs, value, reason or "no lowering", bindings)

    def _as_traced(self, given: Any, value: Any) -> Any:
        """An argument of a call as the trace laid it out where the size is 1, too: results may be laid out like it."""
        if isinstance(given, list | tuple):
            return [self._as_traced(*pair) for pair in zip(given, value, strict=True)]
        if isinstance(given, dict):
            return {name: self._as_traced(part, value[name]) for name, part in given.items()}
        traced = given.meta.get("val") if isinstance(given, fx.Node) else None
        if not isinstance(traced, torch.Tensor) or not isinstance(value, TensorValue):
            return value
        return self.builder.laid_out(value, tuple(map(size, traced.stride())))

    def _python_call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """``operator.getitem`` of results, and arithmetic on plain numbers."""
        value = node.meta.get("val")
        if isinstance(value, bool | float):
            return value
        assert callable(node.target), node
        return node.target(*args, **kwargs)

    def _number(self, node: fx.Node, value: Any) -> Any:
        """A number that is computed from others: a size as its expression, one that floats are part of by the host."""
        expression = number_of(value)
        if not isinstance(value, torch.SymFloat) or isinstance(expression, sympy.Symbol):
            return expression
        return self._by_host(expression, is_float=True)

    def _without_conditions(self, value: Any) -> Any:
        """Arguments of an op on tensors: a condition on sizes (``n > 3``) is the 0 or 1 that the host makes of it."""
        if isinstance(value, list):
            return [self._without_conditions(v) for v in value]
        if isinstance(value, sympy.Basic) and not isinstance(value, sympy.Expr):
            return self._by_host(sympy.Piecewise((1, value), (0, True)), is_float=False)
        return value

    def _by_host(self, expression: sympy.Expr, is_float: bool) -> sympy.Symbol:
        """The symbol of a number that the host computes, once."""
        known = self.computed.get(expression)
        if known is None:
            name = self.builder.unique(f"number_{self.builder.node.name}")
            assumed = {"real": True} if is_float else {"integer": True, "nonnegative": True}
            known = self.computed[expression] = sympy.Symbol(name, **assumed)
            self.builder.statements.append(Number(name, expression, is_float, origins=self.builder.origins()))
        return known

    def _check(self, node: fx.Node) -> None:
        """A call that raises the message where the condition, as the trace made it, does not hold."""
        condition = node.meta.get("condition", node.args[0])
        if isinstance(condition, fx.Node):
            raise UnsupportedError(f"an assertion whose condition is not known: {node.format_node()}")
        condition = by_names_of_inputs(condition, [v.meta.get("val") for v in self.values if v.op == "placeholder"])
        self.builder.extern(node.target, (condition, node.args[1]), {}, (), "an assertion")

    def _arguments(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self._arguments(v) for v in value]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return number_of(value)
        return value

    def _dtypes_fit(self, args: Any, value: Any) -> bool:
        """Whether kernels compute with the dtypes of a call's tensors."""
        results = value if isinstance(value, list | tuple) else [value]
        kinds = [(t.dtype, t.device) for t in _tensor_values(args)]
        kinds += [(r.dtype, r.device) for r in results if isinstance(r, torch.Tensor)]
        return all(is_compiled_dtype(d) and device.type == self.graph.target.device_type for d, device in kinds)

    def _copy_into(self, args: Any) -> TensorValue:
        target, source = args[0], args[1]
        if not target.is_whole or target.base not in self.inputs:
            raise UnsupportedError("a copy into something else than an input of the graph")
        fits = source.shape == target.shape and source.dtype == target.dtype
        if not fits and self.builder.eagerly:
            source = self.builder.extern(
                torch.ops.aten.copy.default,
                (target, source),
                {},
                self.builder.result,
                "a copy for a call that runs eagerly",
            )
        elif not fits:
            name = self.builder.unique(f"{target.base.name}_new")
            decl = TensorDecl(name, target.shape, dense_strides(target.shape), target.dtype, target.device)
            source = self.builder.define_decl(decl, source.load_broadcast)
        name = self.builder.in_memory(source)
        self.builder.statements.append(CopyInto(target.base.name, name, self.builder.origins()))
        return source

    # ------------------------------------------------ outputs

    def _outputs(self, results: Any) -> tuple[Any, ...]:
        taken: set[str] = set()
        outputs = []
        for number, node in enumerate(results):
            self._begin(node if isinstance(node, fx.Node) else None)
            value = self._arguments(node)
            if not isinstance(value, TensorValue):
                outputs.append(value)
                continue
            visible = self.graph.visible_outputs is None or number < self.graph.visible_outputs
            outputs.append(Ref(self._output(value, self.graph.output_strides[number], visible, taken)))
        return tuple(outputs)

    def _output(self, value: TensorValue, wanted: Any, visible: bool, taken: set[str]) -> str:
        """Name of a tensor in memory that may leave the graph as this output.

        What the user sees has eager's strides and memory of its own.  A view of memory that leaves as another
        output too is copied: autograd could not see a write through one of them.
        """
        wanted = None if wanted is None else tuple(map(size, wanted))
        layout = value.strides()
        shared = value.base.name in taken or self._lent(value)
        fits = layout is not None and (wanted is None or lie_alike(value.shape, layout[0], wanted))
        if self.graph.role == "backward" and layout is not None:
            return self.builder.in_memory(value)
        if fits and not ((visible or not value.is_whole) and shared):
            taken.add(value.base.name)
            return self.builder.in_memory(self.builder.laid_out(value, wanted) if visible and wanted else value)
        copied = self.builder.copy(value, wanted or dense_strides(value.shape))
        taken.add(copied.base.name)
        return copied.base.name

    def _overwritten(self, statements: Sequence[Statement], outputs: Sequence[Any]) -> dict[str, str]:
        """Outputs that are made anew, in the layout of the input that takes their elements."""
        made = {decl.name: decl for statement in statements for decl in defined(statement)}
        names = [output.name for output in outputs if isinstance(output, Ref)]
        found = {}
        for number, target in self.graph.overwritten.items():
            output, decl = outputs[number], self.inputs[target]
            if not isinstance(output, Ref) or decl is None or names.count(output.name) > 1:
                continue
            own = made.get(output.name)
            if own is not None and _layout(own) == _layout(decl):
                found[output.name] = decl.name
        return found

    def _lent(self, value: TensorValue) -> bool:
        """Whether the memory is an input's or a constant's."""
        return value.base in self.inputs or value.base.name in self.constants


def _layout(decl: TensorDecl) -> tuple[Any, ...]:
    return decl.shape, decl.stride, decl.dtype, decl.device


def _is_number(node: fx.Node) -> bool:
    """Whether a call gives an int, float or condition that is an expression of those it was given."""
    value = node.meta.get("val") if node.op == "call_function" else None
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and not node.meta.get(SYMBOL_BINDINGS)


def _is_given(expression: Any) -> bool:
    """Whether a number that is an input can be computed from no sizes."""
    return has_float(expression) or any(map(depends_on_data, getattr(expression, "free_symbols", ())))


def _check_result(node: fx.Node, result: Any, value: Any) -> None:
    """Refuse what a lowering of a plugin returns where it is not laid out as the call's result is."""
    pairs = zip(result, value, strict=True) if isinstance(value, list | tuple) else [(result, value)]
    for made, known in pairs:
        if not isinstance(known, torch.Tensor) or made is None:
            continue
        expected = f"{known.dtype}{list(known.shape)}"
        if not isinstance(made, TensorValue):
            raise VerificationError(f"the lowering of {node.target} gives {made!r}; expected a tensor {expected}")
        sizes = zip(made.shape, map(size, known.shape), strict=False)
        known_apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
        if made.dtype != known.dtype or len(made.shape) != known.dim() or known_apart:
            given = f"{made.dtype}{list(made.shape)}"
            raise VerificationError(f"the lowering of {node.target} gives {given}, the operation itself {expected}")


def _tensor_values(value: Any) -> list[TensorValue]:
    if isinstance(value, TensorValue):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensor_values(item)]
    return []


def _without_unused(extern: Extern, alive: set[str]) -> Extern:
    """The call with None in place of results that nobody reads, so that they are freed at once."""
    if all(o is None or o.name in alive for o in extern.outputs):
        return extern
    return attrs.evolve(extern, outputs=tuple(o if o is not None and o.name in alive else None for o in extern.outputs))


def _without_dead(statements: list[Statement], outputs: tuple[Any, ...]) -> tuple[Statement, ...]:
    """Statements whose results somebody uses, or that have an effect or may raise."""
    alive = {output.name for output in outputs if isinstance(output, Ref)}
    binding = any(map(bound_symbols, statements))
    numbers = set(symbols_of_sizes(outputs))
    kept = []
    for statement in reversed(statements):
        names = {decl.name for decl in defined(statement)}
        effect = isinstance(statement, CopyInto) or (isinstance(statement, Extern) and statement.mutates)
        bound = numbers.intersection(bound_symbols(statement)) if binding else ()
        unread = not names and not bound_symbols(statement)
        if effect or unread or bound or names & alive or _is_noticed(statement):
            alive.update(used(statement))
            if binding:
                numbers |= mentioned_symbols(statement)
            kept.append(_without_unused(statement, alive) if isinstance(statement, Extern) else statement)
    return tuple(reversed(kept))


def _is_noticed(statement: Statement) -> bool:
    """Whether eager would raise here for some data, or shows otherwise that it ran; a reader may need no result."""
    match statement:
        case Definition():
            return statement.expr.reports
        case Scatter():
            values = [statement.expr, *(v for c in statement.coords for v in c.values)]
            return any(v.reports for v in (*values, statement.condition) if v is not None)
        case Extern():
            op = statement.op
            return any(seen(op) for seen in (refuses_data, advances_generator, has_registered_effect, is_collective))
    return False


def _refuse_unknown_symbols(statements: Sequence[Statement], given: frozenset[str], all_: Sequence[Statement]) -> None:
    """Unbacked symbols must be known before they are used."""
    if not any(map(bound_symbols, all_)):
        return
    known = set(given)
    for statement in statements:
        missing = mentioned_symbols(statement) - known
        if missing:
            raise UnsupportedError(f"{', '.join(sorted(missing))} is used before it is known: {statement}")
        known.update(bound_symbols(statement))
