"""``backward`` inside the graph: gradients are nodes of it, and ``grad`` of leaves an attribute that the frame sets.

Autograd runs on the fake tensors as it would on the program's, so what it refuses it refuses here.  What it does beside
computing gradients is done by capture: it adds to gradients that are there, in place, and otherwise gives a leaf a
gradient of the leaf's own layout and memory (``torch/csrc/autograd/functions/accumulate_grad.h``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from turret.frames.sources import AttrSource, BoundSource
from turret.graph.autograd.gradient_hooks import has_hook
from turret.plugins.capture.autograd.hooks import refuse_hooks_set_later
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.record.histories import edge_of, edges_below, nodes_below
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.overriding import OF_TORCH
from turret.plugins.capture.values.sequences import Sequence as Row
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.modes import set_grad_enabled
from turret.torch_compat.operators.layouts import is_non_overlapping_and_dense
from turret.torch_compat.operators.native_functions import autograd_c

_LEAF_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_NONE = Constant(None)
_FALSE = Constant(False)


@registry.tensor_method("backward")
def backward(
    t: Tracer,
    tensor: Tensor,
    gradient: Value = _NONE,
    retain_graph: Value = _NONE,
    create_graph: Value = _NONE,
    inputs: Value = _NONE,
) -> Value:
    """``tensor.backward(...)``."""
    return _Backward(t, [tensor], [gradient], retain_graph, create_graph, inputs).run()


@registry.function(torch.autograd.backward)
def backward_of(
    t: Tracer,
    tensors: Value,
    grad_tensors: Value = _NONE,
    retain_graph: Value = _NONE,
    create_graph: Value = _NONE,
    grad_variables: Value = _NONE,
    inputs: Value = _NONE,
) -> Value:
    """``torch.autograd.backward(...)``."""
    if not t.is_none(grad_variables):
        raise Unsupported("torch.autograd.backward with grad_variables")
    roots = _row(t, tensors)
    gradients = [_NONE] * len(roots) if t.is_none(grad_tensors) else _row(t, grad_tensors)
    with _breaking_ahead_of(t, [] if t.is_none(inputs) else _row(t, inputs)):
        return _Backward(t, roots, gradients, retain_graph, create_graph, inputs).run()


@registry.function(torch.autograd.grad)
def gradients_of(
    t: Tracer,
    /,
    outputs: Value,
    inputs: Value,
    grad_outputs: Value = _NONE,
    retain_graph: Value = _NONE,
    create_graph: Value = _FALSE,
    **options: Value,
) -> Value:
    """``torch.autograd.grad(...)``."""
    roots, targets = ([v for v in _row(t, given) if isinstance(v, Tensor)] for given in (outputs, inputs))
    with _breaking_ahead_of(t, targets):
        if any(isinstance(v, Tensor) and v.fake.retains_grad for v in t.recorder.by_fake.values()):
            raise Unsupported("torch.autograd.grad where tensors retain their gradients")
        named = {"grad_outputs": grad_outputs, "retain_graph": retain_graph, "create_graph": create_graph, **options}
        for name, given in (("outputs", outputs), ("inputs", inputs), ("grad_outputs", grad_outputs)):
            named[name] = t.new_tuple([given]) if isinstance(given.realize(), Tensor) else given
        keeps = _keeps(t, retain_graph, create_graph)
        for target in targets:
            _check_hooks(t, target, _LEAF_HOOKS[:1])  # no gradient is accumulated
        return _call(t, roots, keeps, {**named, "retain_graph": Constant(keeps)})


@contextlib.contextmanager
def _breaking_ahead_of(t: Tracer, targets: Iterable[Value]) -> Iterator[None]:
    """Have a graph break inside come where the first of some tensors is computed.

    What one graph computes hangs on its inputs alone: autograd would find no way from one result to another.
    """
    try:
        yield
    except Unsupported as error:
        computed = (v for v in targets if isinstance(v, Tensor) and v.source is None and not v.fake.is_leaf)
        steps = [t.recorder.made_at[v.node.name][0] for v in computed if v.node.name in t.recorder.made_at]
        if error.step is None and steps:
            error.step = min(steps)
        raise


@registry.tensor_method("retain_grad")
def retain_grad(t: Tracer, tensor: Tensor) -> Value:
    """``tensor.retain_grad()``."""
    if not tensor.fake.requires_grad:
        raise Unsupported("retain_grad of a tensor that requires no gradients")
    if not tensor.fake.is_leaf:
        if tensor.source is not None or t.recorder.open_regions:
            raise Unsupported("Tensor.retain_grad of a tensor that existed before")
        tensor.fake.retain_grad()
        t.recorder.retained.note(tensor.fake, t.call_stack.step)
    return _NONE


class _Backward:
    """One call: of which tensors, with which gradients of theirs, and for which leaves."""

    def __init__(
        self,
        t: Tracer,
        roots: Sequence[Value],
        gradients: Sequence[Value],
        retain_graph: Value,
        create_graph: Value,
        inputs: Value,
    ) -> None:
        self.t, self.gradients = t, gradients
        if len(roots) != len(gradients):
            raise Unsupported("torch.autograd.backward of other tensors than there are gradients")
        self.roots = [_plain(v) for v in roots]
        self.creates = not t.is_none(create_graph) and t.truth(create_graph)
        self.keeps = _keeps(t, retain_graph, create_graph)
        self.check_modes()
        self.leaves = self.reached() if t.is_none(inputs) else self.given(inputs)
        self.retained = [v for v in t.recorder.by_fake.values() if v.fake.retains_grad]
        if any(has_hook(v.fake.grad_fn) for v in self.retained):  # autograd.grad gives what hooks are called with
            raise Unsupported("a backward to a tensor that has hooks and retains its gradient")
        for leaf in self.leaves:
            self.check_leaf(leaf)

    def check_modes(self) -> None:
        """Refuse where somebody would see autograd run."""
        t = self.t
        if torch.is_anomaly_enabled():
            raise Unsupported("a backward under torch.autograd.detect_anomaly")
        t.provenance.call(torch.is_anomaly_enabled, (), False)
        if lookups.has_saved_tensor_hooks(autograd_c):
            raise Unsupported("a backward under hooks on saved tensors")
        t.guards.take("CALL", BoundSource("autograd", autograd_c), (lookups.has_saved_tensor_hooks, False))

    def reached(self) -> list[Tensor]:
        """The leaves below, in the order in which they are met."""
        found: dict[int, Tensor] = {}
        variables = [v.fake for v in self.roots if v.fake.requires_grad and v.fake.grad_fn is None]
        variables += [node.variable for node in nodes_below(v.fake for v in self.roots) if hasattr(node, "variable")]
        for variable in variables:
            leaf = self.t.recorder.by_fake.get(id(variable))
            if leaf is None:
                raise Unsupported("a backward that goes on into what was computed before")
            found[id(leaf)] = leaf
        return list(found.values())

    def given(self, inputs: Value) -> list[Tensor]:
        """The leaves that the program names."""
        found = {id(v): _plain(v) for v in _row(self.t, inputs)}
        if any(v.fake.grad_fn is not None or not v.fake.requires_grad for v in found.values()):
            raise Unsupported("a backward for inputs that are no leaves of autograd")
        return list(found.values())

    def check_leaf(self, leaf: Tensor) -> None:
        """Refuse a leaf whose gradients somebody else is shown."""
        if leaf.outer is not None or leaf.type() not in OF_TORCH or leaf.fake.layout is not torch.strided:
            raise Unsupported("a backward to a tensor of a class of its own")
        _check_hooks(self.t, leaf, _LEAF_HOOKS)

    def run(self) -> Value:
        """Record the gradients, then what becomes of ``grad`` of each leaf."""
        t = self.t
        targets = [*self.leaves, *self.retained]
        if not targets:
            raise Unsupported("a backward that reaches nothing")
        named: dict[str, Value] = {
            "outputs": t.new_tuple(list(self.roots)),
            "inputs": t.new_tuple(list(targets)),
            "grad_outputs": t.new_tuple(list(self.gradients)),
            "retain_graph": Constant(self.keeps),
            "create_graph": Constant(self.creates),
            "allow_unused": Constant(True),
        }
        memory = {_memory(v.fake) for v in t.recorder.by_fake.values() if v.fake.layout is torch.strided}
        found = _call(t, self.roots, self.keeps, named).unpack(t)
        mode = torch.is_grad_enabled()
        self.set_mode(self.creates)
        for leaf, value in zip(targets, found, strict=True):
            new = value.realize()
            if not isinstance(new, Tensor):
                continue
            if new.fake.layout is not torch.strided:
                raise Unsupported(f"a {new.fake.layout} gradient")
            if leaf.fake.grad_fn is not None:
                self.retain(leaf, new)
                continue
            self.accumulate(leaf, new, _memory(new.fake) in memory)
            memory.add(_memory(new.fake))
        self.set_mode(mode)
        return _NONE

    def set_mode(self, enabled: bool) -> None:
        if torch.is_grad_enabled() != enabled:
            self.t.state.set(set_grad_enabled, [Constant(enabled)], {})

    def accumulate(self, leaf: Tensor, new: Tensor, shared: bool) -> None:
        """What autograd does with the gradient of a leaf; ``shared``: others see its memory."""
        t, held = self.t, leaf.get_attr(self.t, "grad").realize()
        if isinstance(held, Tensor):
            if self.creates:
                leaf.set_attr(t, "grad", t.recorder.call(torch.add, [held, new], {}))
            else:
                t.recorder.call_method("add_", [held, new], {})
            return
        copied = shared or self.creates or not _is_laid_out_for(new.fake, leaf.fake)
        leaf.set_attr(t, "grad", self.copied(leaf, new) if copied else t.recorder.call_method("detach", [new], {}))

    def copied(self, leaf: Tensor, new: Tensor) -> Any:
        """A gradient in memory of its own, laid out as its leaf is."""
        t = self.t
        if is_non_overlapping_and_dense(leaf.fake) and not leaf.fake.is_contiguous():
            made = t.recorder.call(torch.empty_like, [leaf], {})
            return t.recorder.call_method("copy_", [made, new], {})
        return t.recorder.call_method("clone", [new], {"memory_format": Constant(torch.contiguous_format)})

    def retain(self, tensor: Tensor, new: Tensor) -> None:
        """The gradient of a tensor that is no leaf and was told to retain it."""
        t, held = self.t, tensor.get_attr(self.t, "grad").realize()
        if isinstance(held, Tensor):
            made = t.recorder.call(torch.add, [held, new], {})
        else:
            made = t.recorder.call_method("clone", [new], {"memory_format": Constant(torch.contiguous_format)})
        tensor.set_attr(t, "grad", made)


def _call(t: Tracer, roots: Iterable[Tensor], keeps: bool, named: dict[str, Value]) -> Value:
    """Record ``torch.autograd.grad``; what autograd itself refuses is eager's to raise."""
    refuse_hooks_set_later(t)
    _check_that_it_stays(t, roots, [v for v in _row(t, named["inputs"]) if isinstance(v, Tensor)])
    below = [] if keeps else nodes_below(v.fake for v in roots)
    try:
        found = t.recorder.call(torch.autograd.grad, [], named)
    except Unsupported as error:
        if any(words in error.reason for words in _REFUSALS):
            raise Unsupported(error.reason, error.hint, step=NOWHERE) from error
        raise
    t.recorder.freed.note(below, t.call_stack.step)
    return found


def _check_hooks(t: Tracer, target: Tensor, names: Iterable[str]) -> None:
    """Refuse a tensor from before that has hooks of these names."""
    if target.source is None or target.real is None:
        return
    for name in names:
        if t.truth(t.wrap(getattr(target.real, name), AttrSource(target.source, name))):
            raise Unsupported(f"a backward to a tensor with hooks: {target.describe()}")


def _check_that_it_stays(t: Tracer, roots: Iterable[Tensor], targets: Sequence[Tensor]) -> None:
    """Refuse gradients that flow through what was computed before the frame, which may have been of the targets."""
    before = {edge_of(v.fake) for v in t.recorder.by_fake.values() if v.source is not None and not v.fake.is_leaf}
    for target in targets:
        if target.source is None:
            continue
        below = edges_below((v.fake for v in roots), edge_of(target.fake).__eq__)
        leaves = [node.variable for node, _ in below if hasattr(node, "variable")]
        if not before.isdisjoint(below) or any(id(leaf) not in t.recorder.by_fake for leaf in leaves):
            raise Unsupported("a gradient that goes on into what was computed before")


_REFUSALS = ("a second time", "modified by an inplace operation")


def _keeps(t: Tracer, retain_graph: Value, create_graph: Value) -> bool:
    asked = create_graph if t.is_none(retain_graph) else retain_graph
    return not t.is_none(asked) and t.truth(asked)


def _row(t: Tracer, value: Value) -> list[Value]:
    """One tensor, or several of them."""
    value = value.realize()
    if isinstance(value, Row):
        return [v.realize() for v in value.items]
    return [value] if isinstance(value, Tensor) else [v.realize() for v in value.unpack(t)]


def _plain(value: Value) -> Tensor:
    value = value.realize()
    if type(value) is not Tensor:
        raise Unsupported(f"a backward of {value.describe()}")
    return value


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _is_laid_out_for(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether autograd takes a gradient for that of a leaf as it lies."""
    if not is_non_overlapping_and_dense(leaf):
        return gradient.is_contiguous()
    return all(
        size == 1 or one == other for size, one, other in zip(leaf.shape, gradient.stride(), leaf.stride(), strict=True)
    )
