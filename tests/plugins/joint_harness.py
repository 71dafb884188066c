"""Compile functions by capture, joint trace, a cut, and interpretation of both graphs: no code generator involved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from tests.plugins.joint_graphs import make_context
from turret.contrib.dynamo.bridge import captured_graph
from turret.graph.op_traits import is_mutating_op
from turret.hooks.products import CapturedGraph, JointGraph, PartitionedGraph
from turret.hooks.signature import GraphSignature
from turret.plugins import partition
from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.joint import turret_joint
from turret.plugins.wrap_runtime import turret_runtime
from turret.testing.corpus.seeding import seed_generators

_ONE = torch.ones(1, 1)


@attrs.define
class Compiled:
    """A compiled function and the products of its last compilation."""

    function: Callable
    joints: list[JointGraph] = attrs.field(factory=list)
    cuts: list[PartitionedGraph] = attrs.field(factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def joint(self) -> JointGraph:
        return self.joints[-1]

    @property
    def signature(self) -> GraphSignature:
        return self.joint.signature

    def ops(self) -> list[str]:
        return [str(n.target) for n in self.joint.module.graph.nodes if n.op == "call_function"]


def compiled(
    function: Callable,
    *,
    decompose: bool = True,
    dynamic: bool | None = False,
    capture: str = "dynamo",
    **options: Any,
) -> Compiled:
    """``function`` compiled; the signature goes through JSON on the way.

    ``capture`` is ``"dynamo"``, ``"fx"`` (symbolic tracing, which takes in-place layout changes that dynamo refuses)
    or ``"call"``: a graph that calls the function as it is.
    """
    result = Compiled(function)
    table = decomposition_table(fallback_random=True) if decompose else {}

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable:
        return finish(captured_graph(module, example_inputs))

    def finish(captured: CapturedGraph) -> Callable:
        joint = turret_joint(make_context(), captured, table)
        result.joints.append(joint)
        check_joint(joint)
        cut = partition.turret_partition(make_context(partition, **options), joint)
        result.cuts.append(cut)
        stored = GraphSignature.from_json(cut.signature.to_json())
        assert stored == cut.signature
        forward = executable(cut.forward, stored)

        def backward(given: tuple[int, ...] | None = None) -> Callable | None:
            return executable(cut.backward, None) if given is None else None

        return turret_runtime(stored, len(cut.saved_tensors), len(cut.saved_sizes), forward, backward)

    if capture != "dynamo":
        result.function = _OnFirstCall(function, finish, fx.symbolic_trace if capture == "fx" else None)
        return result
    torch.compiler.reset()
    result.function = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    return result


class _OnFirstCall:
    """Captures a function on its first call, by ``trace`` or as one call, with sizes as they are then."""

    def __init__(self, function: Callable, finish: Callable, trace: Callable | None) -> None:
        self.function, self.finish, self.trace, self.made = function, finish, trace, None

    def __call__(self, *args: Any) -> Any:
        if self.made is None:
            if self.trace is None:
                module = one_call(lambda *a: tuple(pytree.tree_leaves(self.function(*a))), len(args))
            else:
                module = self.trace(self.function)
                output = module.graph.output_node()
                output.args = (tuple(pytree.tree_leaves(output.args[0])),)
                module.recompile()
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            fakes = tuple(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args)
            self.made = self.finish(CapturedGraph(module, fakes, mode, grad_enabled=torch.is_grad_enabled()))
        return self.made(*args)


def one_call(function: Callable, count: int) -> fx.GraphModule:
    """A graph that calls ``function``, of ``count`` tensors to a tuple, once."""
    graph = fx.Graph()
    graph.output(graph.call_function(function, tuple(graph.placeholder(f"x{number}") for number in range(count))))
    return fx.GraphModule(torch.nn.Module(), graph)


def check_joint(joint: JointGraph) -> None:
    """Invariants of every joint graph."""
    joint.module.graph.lint()
    for node in joint.module.graph.nodes:
        if node.op == "output":
            continue
        assert "val" in node.meta, node.format_node()
        assert not is_mutating_op(node.target), f"{node.format_node()} writes"
        value = node.meta["val"]
        assert not (isinstance(value, torch.Tensor) and value.requires_grad), node
        if node.op == "call_function":
            assert node.meta.get("partitioner_tag") in ("is_forward", "is_backward"), (node.format_node(), node.meta)


def executable(module: fx.GraphModule, signature: GraphSignature | None) -> Callable[[list], list]:
    """A boxed callable that interprets a graph and gives visible outputs the strides that are asked for."""
    strides = [o.stride if o.visible else None for o in signature.graph_outputs] if signature is not None else []

    def run(args: list) -> list:
        given = list(args)
        args.clear()
        assert torch.mm(_ONE, _ONE).dtype is torch.float32, "autocast reached compiled code"
        results = list(fx.Interpreter(module).run(*given))
        for number, stride in enumerate(strides):
            value = results[number]
            if stride is None or not isinstance(value, torch.Tensor) or not all(isinstance(s, int) for s in stride):
                continue
            if value.stride() != stride:
                results[number] = torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)
        return results

    return run


def snapshot(value: Any) -> Any:
    """What can be seen of a tensor from outside, values aside."""
    if not isinstance(value, torch.Tensor):
        return value
    return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad, value.storage_offset())


def clone_args(args: Sequence[Any]) -> list[Any]:
    """Copies of arguments that share memory among one another as the originals do."""
    storages: dict[int, torch.Tensor] = {}
    result = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            result.append(value)
            continue
        key = value.untyped_storage()._cdata
        if key not in storages:
            flat = value.detach().as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
            storages[key] = flat.clone()
        copy = storages[key].as_strided(value.shape, value.stride(), value.storage_offset()).detach()
        result.append(copy.requires_grad_(value.requires_grad))
    return result


def assert_same(
    function: Callable,
    args: Sequence[Any],
    *,
    prepare: Callable[[list[Any]], list[Any]] = lambda args: args,
    backward: bool = True,
    calls: int = 2,
    tolerance: float = 1e-5,
    **options: Any,
) -> Compiled:
    """Run ``function`` in eager and compiled on copies of ``args`` and compare all that can be seen.

    ``prepare`` makes the arguments proper out of leaves (``x * 1`` for an argument that is not a leaf).
    """
    made = compiled(function, **options)
    for _ in range(calls):
        eager_leaves, our_leaves = clone_args(args), clone_args(args)
        eager_args, our_args = prepare(list(eager_leaves)), prepare(list(our_leaves))
        seed_generators(0)
        expected = function(*eager_args)
        seed_generators(0)
        actual = made(*our_args)
        _compare(expected, actual, eager_args, our_args, tolerance)
        if backward:
            _compare_gradients(expected, actual, eager_leaves, our_leaves, eager_args, our_args, tolerance)
    return made


def _flat(value: Any) -> list[Any]:
    return [v for element in value for v in _flat(element)] if isinstance(value, (tuple, list)) else [value]


def _compare(expected: Any, actual: Any, eager_args: list, our_args: list, tolerance: float) -> None:
    ones, others = [*_flat(expected), *eager_args], [*_flat(actual), *our_args]
    assert len(ones) == len(others)
    for number, (one, other) in enumerate(zip(ones, others, strict=True)):
        assert snapshot(one) == snapshot(other), f"{number}: {snapshot(one)} {snapshot(other)}"
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert one.is_leaf == other.is_leaf
    assert _sharing(ones) == _sharing(others)


def _sharing(values: list[Any]) -> list[Any]:
    """Who lies in whose memory, and who is the same object."""
    tensors = [(n, v) for n, v in enumerate(values) if isinstance(v, torch.Tensor)]
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return [(storages.setdefault(v.untyped_storage()._cdata, n), objects.setdefault(id(v), n)) for n, v in tensors]


def _compare_gradients(
    expected: Any, actual: Any, eager_leaves: list, our_leaves: list, eager_args: list, our_args: list, tolerance: float
) -> None:
    def loss(values: list[Any]) -> Any:
        terms = [
            (v.double() * torch.linspace(1, 2, v.numel(), dtype=torch.double).reshape(v.shape)).sum()
            for v in values
            if isinstance(v, torch.Tensor) and v.requires_grad and v.grad_fn is not None and v.is_floating_point()
        ]
        return sum(terms) if terms else None

    with torch.enable_grad():
        one, other = loss([*_flat(expected), *eager_args]), loss([*_flat(actual), *our_args])
    assert (one is None) == (other is None)
    if one is None:
        return
    one.backward()
    other.backward()
    for number, (a, b) in enumerate(zip(eager_leaves, our_leaves, strict=True)):
        if isinstance(a, torch.Tensor) and a.is_leaf:
            assert (a.grad is None) == (b.grad is None), number
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, rtol=tolerance, atol=tolerance)
                assert a.grad.stride() == b.grad.stride()
