"""The tracer: sees every op below autograd, runs it on fake tensors as eager would, and records a pure graph of it.

One run does all: the fake tensors that the program handles behave as eager's (views share memory, in-place
ops move version counters, autograd records above), so mutation, aliasing, strides and gradients are
observed; the graph beside them holds values only, because every write becomes a new value of the storage
written to (``storage.py``).
Decomposed ops run twice: as eager does, for the strides that the user sees, and decomposed, for the graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from turret.errors import UnsupportedError, VerificationError
from turret.graph.fakes.layouts import has_layout_rule, tensors_in
from turret.graph.fakes.sizes import is_dense, same_layout, same_sizes
from turret.graph.ops.functional_ops import bound_arguments, form_tokens, functional_op
from turret.graph.wrapper_tensors import is_wrapper
from turret.hooks.registration.blame import blaming, owner
from turret.plugins.joint.fakes import FakeRunner, TensorRecipe, layout_key
from turret.plugins.joint.ops.mutation import (
    TensorArgument,
    call_in_sequence,
    check_result_fits,
    pure_variant,
    tensors_of_call,
    view_variant,
)
from turret.plugins.joint.ops.numbers import DataNumbers
from turret.plugins.joint.ops.wrapped_numbers import (
    NUMBERS,
    has_symbols,
    numbers_as_tensors,
    value_of_numbers,
)
from turret.plugins.joint.recorder import Recorder
from turret.plugins.joint.storage import Storage, Tracked, ViewStep, keep_values
from turret.plugins.joint.views import IDENTITIES, contiguous, parts, reshape, steps_from_base, write_back
from turret.torch_compat.dispatch import (
    DisablePythonDispatcher,
    DispatchKey,
    TorchDispatchMode,
    enable_python_dispatcher,
    has_kernel_for,
    no_dispatch,
)
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.operators.ops import HigherOrderOperator

aten = torch.ops.aten
_SCALAR_TENSOR = aten.scalar_tensor.default
_DYNAMIC = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
SHARING = frozenset(
    (
        aten._unsafe_view.default,
        aten._reshape_alias.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    )
)
"""Ops whose result shares memory with their argument although the schema does not say so (or says it loosely)."""

Rule = Callable[..., Any]


class JointTracer(TorchDispatchMode):
    """Records one graph; active on top of the fake tensor mode while the program runs.

    ``rule_of`` gives, for the tracer and an op, the function that records its calls, which takes the tracer, the op,
    its arguments and those by name (``ops.rules``).  ``policy`` (of selective checkpointing) names, for an op and its
    arguments, whether its results are saved.
    """

    supports_higher_order_operators = True

    def __init__(
        self, fake_mode: Any, decompositions: Mapping[Any, Callable], rule_of: Callable[[JointTracer, Any], Rule]
    ) -> None:
        super().__init__()
        self.fake_mode, self.table, self.rule_of = fake_mode, decompositions, rule_of
        self.recorder = Recorder()
        self.numbers = DataNumbers(self.recorder, fake_mode.shape_env)
        self.policy: Callable[..., Any] | None = None
        self.late_memory: Any = None
        """What takes the memory that a backward says it reads when it runs; None in the forward."""
        self._tracked: dict[int, Tracked] = {}
        self._handles: dict[fx.Node, torch.Tensor] = {}
        self._depth = 0
        self.refreshed = 0
        self._run = FakeRunner(fake_mode, self.layout_key)
        self._rules: dict[Any, Rule] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(kind is not FakeTensor and is_wrapper(kind) for kind in types):
            return NotImplemented  # what it is made of is computed with
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = self.rule_of(self, func)
        if args and args[0].__class__ in NUMBERS:
            if has_symbols(args, kwargs):  # of which torch makes tensors of a value of its own, and no calls
                make = functools.partial(self.__torch_dispatch__, _SCALAR_TENSOR, ())
                args = numbers_as_tensors(func, args, lambda number, dtype: make((number,), {"dtype": dtype}))
            value = value_of_numbers(func, args, kwargs or {})
            if value is not NotImplemented:
                return value
        if self._depth:
            return rule(self, func, args, kwargs or {})
        with DisablePythonDispatcher():
            if self.policy is not None:
                self.recorder.provenance["recompute"] = self.policy(func, args, kwargs or {})
            return rule(self, func, args, kwargs or {})

    def beside(self) -> JointTracer:
        """A tracer of another graph, which does what this one does."""
        return JointTracer(self.fake_mode, self.table, self.rule_of)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nobody captures frames while a trace runs; the wrapper that keeps dynamo out costs 10 us an op."""
        return False

    def rule_for(self, func: Any) -> Rule:
        """What is done for calls of an op that has no rule of its own: what its schema and the table ask for."""
        if isinstance(func, HigherOrderOperator):
            raise UnsupportedError(f"the higher-order op {func} is not supported here")
        if func is torch.ops.prim.device.default:
            return JointTracer._device
        if func in _QUESTIONS:
            return JointTracer._answered
        if func.namespace == "prim":
            return JointTracer._unrecorded
        if func in IDENTITIES:
            return JointTracer._identity
        if torch.Tag.inplace_view in func.tags:
            return JointTracer._layout_change
        if func._schema.is_mutable:
            return JointTracer._write
        if func in SHARING or any(r.alias_info is not None for r in func._schema.returns):
            return JointTracer._composite if _is_composite(func) and func not in self.table else JointTracer._view
        return self._rule_for_values(func)

    def _rule_for_values(self, func: Any) -> Rule:
        """That of an op which writes to nothing and whose results share memory with nothing."""
        if func in self.table:
            return JointTracer._decomposed
        if _is_composite(func):
            return JointTracer._laid_out_composite if has_layout_rule(func) else JointTracer._composite
        return JointTracer._plain

    # What is known of tensors

    def track(self, tensor: torch.Tensor, node: fx.Node, **facts: Any) -> Tracked:
        """Remember a tensor with a storage of its own."""
        tracked = Tracked(tensor, node, Storage(node, tensor), **facts)
        self._tracked[id(tensor)] = tracked
        return tracked

    def remember(self, tracked: Tracked) -> None:
        self._tracked[id(tracked.tensor)] = tracked

    def tracked(self, tensor: torch.Tensor) -> Tracked:
        """What is known of a tensor; a real tensor becomes a constant of the graph."""
        found = self._tracked.get(id(tensor))
        if found is None:
            found = self._adopt_constant(tensor)
        elif found.stale:
            raise UnsupportedError("a view is used after what it views changed its layout in place, with gradients")
        return found

    def known(self, tensor: torch.Tensor) -> Tracked | None:
        """What is known of a tensor; None for a real one that the graph has not met."""
        return self._tracked.get(id(tensor))

    def make(self, recipe: TensorRecipe, memory: torch.Tensor | None = None) -> torch.Tensor:
        """A fake tensor that nothing is known of yet, in memory of its own or in that of another."""
        return self._run.make(recipe, (memory,))

    def layout_key(self, tensor: torch.Tensor) -> tuple | None:
        """``fakes.layout_key`` of a tensor, or None where nothing is known of it."""
        tracked = self._tracked.get(id(tensor))
        if tracked is None:
            return None
        if tracked.key is False:
            tracked.key = layout_key(tensor)
        return tracked.key

    def _adopt_constant(self, tensor: torch.Tensor) -> Tracked:
        if isinstance(tensor, FakeTensor):
            constant = tensor.constant
            if constant is None:
                raise UnsupportedError("a fake tensor that is neither an input nor a result reached the graph")
        elif type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise UnsupportedError(f"a tensor of type {type(tensor).__name__} reached the graph")
        else:
            constant = tensor
        with no_dispatch():
            constant = constant.detach().resolve_neg()
        node = self.recorder.constant(constant)
        self.recorder.describe(node, self.fake_mode.from_tensor(constant, static_shapes=True))
        return self.track(tensor, node, diverged=tensor.is_neg())

    def alias(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor in the same memory, in the same layout, that autograd knows nothing of."""
        return self._run.alias(value)

    def node(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor's present value."""
        tracked = self.tracked(tensor)
        if tracked.version != tracked.storage.version:
            self._refresh(tracked)
        return tracked.node

    def _refresh(self, tracked: Tracked) -> None:
        """Make a tensor's node anew from its storage, which has been written to since."""
        self.refreshed += 1
        steps = steps_from_base(tracked.chain, tracked.storage)
        self.set_value(tracked, self.through(tracked.storage, steps))

    def set_value(self, tracked: Tracked, node: fx.Node) -> None:
        tracked.node, tracked.version = node, tracked.storage.version
        tracked.diverged = not same_layout(node.meta["val"], tracked.tensor)

    def base_of(self, storage: Storage) -> fx.Node:
        if storage.base is None:
            storage.base = storage.group(self)
        return storage.base

    # Running functions on nodes

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Ops that run inside are recorded as part of what is being done, not as calls of the program."""
        self._depth += 1
        try:
            with self:
                yield
        finally:
            self._depth -= 1

    def handle(self, node: fx.Node) -> torch.Tensor:
        """A tracked tensor that stands for a node's value."""
        handle = self._handles.get(node)
        if handle is None:
            handle = self._handles[node] = self.alias(node.meta["val"])
            self.track(handle, node)
        return handle

    def apply(self, func: Callable, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        """The node of ``func`` of a node's value; a view that its strides do not allow goes through a copy."""
        handle = self.handle(node)
        if func is aten._conj.default:  # the value need not be kept conjugated where eager's is
            func = aten._conj_physical.default
        with self.nested():
            try:
                return self.node(func(handle, *args, **kwargs))
            except (RuntimeError, ValueError):
                if func is aten._reshape_alias.default:
                    return self.node(reshape(handle, args[0]))
                return self.node(func(contiguous(handle), *args, **kwargs))

    # Rules

    def _device(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.device:
        return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)

    def _answered(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return _QUESTIONS[func](args[0])

    def _unrecorded(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _composite(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        with self:
            return func.decompose(*args, **kwargs)

    def eager_result(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What eager's call gives, in eager's layout, with nothing recorded."""
        return self._run(func, args, kwargs)

    def _laid_out_composite(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A composite op whose result has a layout that its parts do not give it."""
        eager = self._run(func, args, kwargs)
        with self.nested():
            out = func.decompose(*args, **kwargs)
        self.adopt(func, eager, out, set())
        return eager

    def _identity(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        source = self.tracked(args[0])
        if func in _LIFTS:
            out = func(*args, **kwargs)
        elif isinstance(args[0], FakeTensor):
            out = self._run(func, args, kwargs)
        else:
            out = self.fake_mode.from_tensor(args[0], static_shapes=True)
        if out is args[0]:
            return out
        alias = Tracked(out, source.node, source.storage, source.chain, source.diverged)
        alias.version = source.version
        self.remember(alias)
        return out

    @property
    def is_outermost(self) -> bool:
        """Whether the op at hand is a call of the program, and not part of what is done for one."""
        return self._depth == 0

    def ordinary(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call by the rule that holds for ops of its kind."""
        return self.rule_for(func)(self, func, args, kwargs)

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Record a call as it stands."""
        return self._plain(func, args, kwargs)

    def _plain(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self._depth and func in _OF_SOMETHING:
            with self.numbers.assuming_nothing(args[0].shape):
                return self._record(func, args, kwargs, self._run(func, args, kwargs))
        return self._record(func, args, kwargs, self._run(func, args, kwargs))

    def _record(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> Any:
        """Record a call whose fake result is ``out``."""
        if isinstance(out, bool | int | float | complex) or out is NotImplemented:
            return out
        diverged: list[Tracked] = []
        node_args, node_kwargs = self.nodes(args, diverged), self.nodes(kwargs, diverged)
        value = out
        numbers = self.numbers.fresh(out)
        if diverged and not numbers:  # run again, it would have other numbers; executables lay results out as foretold
            value = self._value_on_nodes(func, node_args, node_kwargs)
        node = self.recorder.call(func, node_args, node_kwargs, value)
        self.numbers.bind(node, numbers)
        self.track_results(node, out, value)
        return out

    def _value_on_nodes(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        args, kwargs = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with torch.no_grad(), enable_python_dispatcher():  # operands of known sizes may meet symbolic numbers
            return func(*args, **kwargs)

    def track_results(self, node: fx.Node, out: Any, value: Any) -> None:
        if isinstance(out, torch.Tensor):
            self.track(out, node, diverged=value is not out and not same_layout(value, out))
            if not all(type(s) is int for s in out.shape):
                self.recorder.bind_sizes(node, value)
        elif isinstance(out, (list, tuple)):
            for index, (element, its_value) in enumerate(zip(out, value, strict=True)):
                if element is not None and not isinstance(element, bool | int | float):
                    self.track_results(self.recorder.element(node, index, its_value), element, its_value)
        elif isinstance(out, torch.SymInt | torch.SymFloat | torch.SymBool):
            self.recorder.bind_sizes(node, out)

    def nodes(self, value: Any, diverged: list[Tracked]) -> Any:
        """Arguments as the graph holds them: tensors and symbolic numbers by their nodes."""
        if isinstance(value, torch.Tensor):
            tracked = self.tracked(value)
            if tracked.version != tracked.storage.version:
                self._refresh(tracked)
            if tracked.diverged:
                diverged.append(tracked)
            return tracked.node
        if isinstance(value, tuple):
            return tuple([self.nodes(v, diverged) for v in value])
        if isinstance(value, list):
            return [self.nodes(v, diverged) for v in value]
        if isinstance(value, dict):
            return {k: self.nodes(v, diverged) for k, v in value.items()}
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.recorder.size(value)
        return value

    def _decomposed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        eager = None
        top = self._depth == 0
        if top and not any(tag in func.tags for tag in _DYNAMIC):
            eager = self._run(func, args, kwargs)
        origin, self.recorder.origin = self.recorder.origin, self.recorder.origin or func
        assumed = self.numbers.assumed
        try:
            with self.nested():
                out = self.table[func](*args, **kwargs)
        finally:
            self.recorder.origin = origin
        if eager is not None and self.numbers.assumed != assumed:
            raise UnsupportedError(
                f"the decomposition of {func} assumes more of sizes that depend on data than it does"
            )
        if out is NotImplemented:
            rule = JointTracer._composite if _is_composite(func) else JointTracer._plain
            return rule(self, func, args, kwargs) if eager is None else self._record(func, args, kwargs, eager)
        if eager is None:
            return out
        sources = {id(self.tracked(a).storage) for a in tensors_in((*args, *kwargs.values()))}
        with blaming(owner(self.table[func])):
            self.adopt(func, eager, out, sources)
        return eager

    def adopt(self, func: Any, eager: Any, out: Any, taken: set[int]) -> None:
        """Give what eager gives the nodes of the op's decomposition; results in memory already taken are copied."""
        if isinstance(eager, torch.Tensor):
            if eager.dtype != out.dtype or _differ(eager.shape, out.shape):
                raise VerificationError(
                    f"the decomposition of {func} gives {out.dtype}{list(out.shape)}, "
                    f"the op itself {eager.dtype}{list(eager.shape)}"
                )
            node = self.node(out)
            storage = self.tracked(out).storage
            if id(storage) in taken:
                node = self.apply(aten.clone.default, node)
            taken.add(id(storage))
            self.track(eager, node, diverged=not same_layout(node.meta["val"], eager))
        elif isinstance(eager, (list, tuple)):
            for one, its in zip(eager, out, strict=True):
                if one is not None and its is not None:
                    self.adopt(func, one, its, taken)

    def _view(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        source = args[0]
        out = self._run(func, args, kwargs)
        tracked = self.tracked(source)
        node = self.node(source)
        pieces = parts(func, source, args[1:], kwargs)
        if pieces is None and isinstance(out, (list, tuple)):
            raise UnsupportedError(f"{func} gives several views in a way that is not known")
        if pieces is None:
            self._track_view(out, tracked, node, func, args[1:], kwargs)
        else:
            for piece, (op, rest) in zip(out, pieces, strict=True):
                self._track_view(piece, tracked, node, op, rest, {})
        return out

    def _track_view(
        self, out: torch.Tensor, source: Tracked, node: fx.Node, op: Any, args: tuple, kwargs: dict[str, Any]
    ) -> None:
        if op is aten.as_strided.default:
            args, kwargs = (list(out.shape), list(out.stride()), out.storage_offset()), {}
        step = ViewStep(op, args, kwargs)
        source.storage.restrided |= op is aten.as_strided.default and bool(source.chain)
        view = Tracked(out, node, source.storage, (*source.chain, step))
        if not source.diverged and _shows_all(out, source.tensor):
            view.node = node
        elif source.diverged or op is aten.as_strided.default:
            view.node = (
                self._strided(source, node, out, step)
                if op is aten.as_strided.default
                else self.apply(op, node, *args, **kwargs)
            )
        else:
            view.node = self._view_node(source.tensor, out, op, args, kwargs)
        view.diverged = not same_layout(view.node.meta["val"], out)
        self.remember(view)

    def _view_node(
        self, source: torch.Tensor, out: torch.Tensor, op: Any, args: tuple, kwargs: dict[str, Any]
    ) -> fx.Node:
        table = aten.neg.default if op is aten._neg_view.default else self.table.get(op)
        if table is not None:
            with self.nested():
                made = table(source, *args, **kwargs)
            if made is not NotImplemented:
                return self.node(made)
        nodes: list[Tracked] = []
        return self.recorder.call(op, self.nodes((source, *args), nodes), self.nodes(kwargs, nodes), out)

    def _strided(self, source: Tracked, node: fx.Node, out: torch.Tensor, step: ViewStep) -> fx.Node:
        """``as_strided`` looks at memory; where the node's value lies in other memory than eager's, go by way of the
        flat storage."""
        start = source.storage.tensor
        if source.storage.version and (start is None or not is_dense(start.shape, start.stride())):
            raise UnsupportedError("as_strided of a tensor that was written to and leaves gaps in its memory")
        if not source.diverged and not source.chain:
            nodes: list[Tracked] = []
            return self.recorder.call(step.op, (node, *self.nodes(step.args, nodes)), {}, out)
        return self.through(source.storage, steps_from_base((*source.chain, step), source.storage))

    def through(self, storage: Storage, steps: Sequence[ViewStep]) -> fx.Node:
        """What a storage's present value shows through some views."""
        node = self.base_of(storage)
        for step in steps:
            node = self.apply(step.op, node, *step.args, **step.kwargs)
        return node

    def _write(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An op that writes: its pure variant gives new values, which the storages written to then hold."""
        self._refuse_restrided(args, kwargs)
        arguments = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        tensors = tensors_of_call(func, bound_arguments(func, args, kwargs))
        form = call_in_sequence(func, tensors, lambda t: self.tracked(t).storage)
        if form is not None:
            return self._write_in_sequence(func, form, args, kwargs, tensors)
        variant = pure_variant(func)
        assert variant is not None  # only ops with one come here
        given = {k: v for k, v in arguments.items() if k not in variant.dropped}
        with self.nested():
            result = variant.op(**_known(variant.op, _defaults(func, variant.op) | given))
        results = list(result) if isinstance(result, (list, tuple)) and not _returns_one(variant.op) else [result]
        for name, value in zip(variant.written, results, strict=True):
            check_result_fits(func, variant, arguments[name], value)
        eager = self._run(func, args, kwargs)
        for name, value in zip(variant.written, results, strict=True):
            self._write_all(arguments[name], value)
        return self._results_of_write(func, arguments, eager, [])

    def _refuse_restrided(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Refuse gradients where eager's go by strides and those of fake tensors by views, which show less."""
        tensors = tensors_in((args, tuple(kwargs.values())))
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
            return
        if any(found is not None and found.storage.restrided for found in map(self.known, tensors)):
            raise UnsupportedError(
                "a write, with gradients, to memory of which as_strided of a view shows more, or a view changed layout"
            )

    def _write_in_sequence(
        self, func: Any, form: str, args: tuple, kwargs: dict[str, Any], tensors: list[TensorArgument]
    ) -> Any:
        """An op that runs as it is, on copies of what it writes to."""
        with self.nested():
            result = functional_op(func, form)(*args, **kwargs)
        eager = self._run(func, args, kwargs)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        targets: dict[str, Any] = {}
        for token, tensor in zip(form_tokens(form), tensors, strict=True):
            if token.startswith("w"):
                targets.setdefault(token, tensor.value)
        own = len(results) - len(targets)
        for target, value in zip(targets.values(), results[own:], strict=True):
            self.assign(target, value)
        return self._results_of_write(func, bound_arguments(func, args, kwargs), eager, results[:own])

    def _write_all(self, target: Any, value: Any) -> None:
        if isinstance(target, (list, tuple)):
            for one, its in zip(target, value, strict=True):
                self._write_all(one, its)
        elif target is not None:
            if not same_sizes(value.shape, target.shape) and same_sizes(target.shape, (0,)):
                with self.nested():  # an operation fills it, whose fake leaves it empty
                    aten.resize_.default(target, list(value.shape))
                    if value.stride() != target.stride() and is_dense(value.shape, value.stride()):
                        aten.as_strided_.default(target, list(value.shape), list(value.stride()))
            self.assign(target, value)

    def _results_of_write(self, func: Any, arguments: dict[str, Any], eager: Any, kept: list[Any]) -> Any:
        """What a writing op returns: written arguments as they are, other results with their nodes."""
        returns = func._schema.returns
        if not returns:
            return None
        values, others = [], iter(kept)
        for declared, value in zip(returns, [eager] if len(returns) == 1 else eager, strict=True):
            if declared.alias_info is not None and declared.alias_info.is_write:
                values.append(_written_argument(func, declared, arguments))
            else:
                self.adopt(func, value, next(others), set())
                values.append(value)
        return values[0] if len(values) == 1 else tuple(values)

    def assign(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """``target`` now holds ``value`` (tracked; cast to its dtype), and so do all that share its memory."""
        tracked = self.tracked(target)
        if value.dtype != target.dtype:
            with self.nested():
                value = aten._to_copy.default(value, dtype=target.dtype)
        if not same_sizes(value.shape, target.shape):
            with self.nested():
                value = aten.expand.default(value, list(target.shape))
        self._write_chain(tracked, self.node(value))

    def _write_chain(self, tracked: Tracked, node: fx.Node) -> None:
        storage = tracked.storage
        steps = steps_from_base(tracked.chain, storage)
        values = [self.base_of(storage)]
        for step in steps[:-1]:
            values.append(self.apply(step.op, values[-1], *step.args, **step.kwargs))
        new = node
        for step, base in zip(reversed(steps), reversed(values), strict=False):
            new = self._write_step(step, base, new)
        storage.base = new
        storage.version += 1
        self.set_value(tracked, node)

    def _write_step(self, step: ViewStep, base: fx.Node, value: fx.Node) -> fx.Node:
        base_handle, value_handle = self.handle(base), self.handle(value)
        with self.nested():
            return self.node(write_back(step, base_handle, value_handle))

    def enlarge(self, tracked: Tracked, node: fx.Node, before: ViewStep) -> None:
        """The memory of a tensor grows to ``node``, of which the tensor is all; ``before`` is what it was of it.

        All others in that memory are what they were, as views of the larger one.
        """
        storage = tracked.storage
        for other in self._tracked.values():
            if other.storage is storage and other is not tracked:
                other.chain = (before, *other.chain)
        storage.base, storage.tensor = node, tracked.tensor
        storage.version += 1

    def seen_beyond(self, tracked: Tracked) -> bool:
        """Whether others show what ``resize_`` left out of a tensor's memory."""
        whole = tracked.storage.tensor
        if not tracked.chain or whole is None or same_sizes((whole.numel(),), (tracked.tensor.numel(),)):
            return False
        return any(
            other.storage is tracked.storage
            and other is not tracked
            and other.tensor is not whole
            and other.chain[:1] != tracked.chain[:1]
            for other in self._tracked.values()
        )

    def _layout_change(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """``t_``, ``unsqueeze_`` and the like: the tensor becomes a view of what it was."""
        target = args[0]
        tracked = self.tracked(target)
        node = self.node(target)
        if func in _DETACHING:
            return func(*args, **kwargs)
        keep_values(self.recorder.graph, target, self.alias)
        before = Tracked(self.alias(target), node, tracked.storage, tracked.chain, tracked.diverged)
        before.version = tracked.version
        self.remember(before)
        if tracked.storage.tensor is target:
            tracked.storage.tensor = before.tensor
        if target._base is not None:
            tracked.storage.restrided = True
        if target.requires_grad:
            views = [v for v in self._tracked.values() if v.tensor._base is target and v.tensor.requires_grad]
            if views and not torch.is_grad_enabled():  # torch itself crashes where fakes ask for their history
                raise UnsupportedError("a layout that changes in place without gradients, of a tensor that has views")
            for view in views:
                view.stale = True
        func(*args, **kwargs)
        with self.nested():
            out = view_variant(func)(before.tensor, *args[1:], **kwargs)
            made = self.tracked(out)
        tracked.node, tracked.version, tracked.chain = self.node(out), made.version, made.chain
        tracked.diverged = not same_layout(tracked.node.meta["val"], target)
        tracked.layout_changes += 1
        tracked.key = False
        return target


_QUESTIONS: dict[Any, Callable[[torch.Tensor], Any]] = {
    aten.size.default: lambda tensor: tuple(map(int, tensor.shape)),
    aten.stride.default: lambda tensor: tuple(map(int, tensor.stride())),
    aten.storage_offset.default: lambda tensor: int(tensor.storage_offset()),
}
"""What torch's kernels for conjugated tensors ask of a tensor with symbolic sizes: numbers, which become guards."""
_OF_SOMETHING = frozenset((aten.amax.default, aten.amin.default))
"""Ops that refuse to reduce no elements; what they are part of (softmax) does not, and kernels know what they give."""
_LIFTS = frozenset((aten.lift_fresh.default, aten.lift.default))
_DETACHING = frozenset((aten.detach_.default,))


def _differ(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes cannot be the same, whatever their symbols are."""
    known = ((a, b) for a, b in zip(one, other, strict=False) if type(a) is int and type(b) is int)
    return len(one) != len(other) or any(a != b for a, b in known)


def _is_composite(func: Any) -> bool:
    key = DispatchKey.CompositeImplicitAutograd
    return key in func.py_kernels or has_kernel_for(func.name(), key)


def _shows_all(view: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a view is its source as it stands."""
    return view.dtype == source.dtype and same_sizes(view.shape, source.shape) and same_layout(view, source)


def _returns_one(op: Any) -> bool:
    return len(op._schema.returns) == 1


def _known(op: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that an op takes."""
    known = {a.name for a in op._schema.arguments}
    return {k: v for k, v in given.items() if k in known}


def _defaults(func: Any, variant: Any) -> dict[str, Any]:
    """Defaults of ``func`` for what its variant has none for: calls leave out what equals a default."""
    needed = {a.name for a in variant._schema.arguments if not a.has_default_value()}
    return {a.name: a.default_value for a in func._schema.arguments if a.has_default_value() and a.name in needed}


def _written_argument(func: Any, declared: Any, arguments: dict[str, Any]) -> Any:
    """The argument that a written result is."""
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.before_set == declared.alias_info.before_set:
            return arguments[argument.name]
    raise VerificationError(f"{func} returns a written tensor that is none of its arguments")
