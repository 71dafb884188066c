"""The trace: a functional ATen graph of forward, or of forward and backward, by dispatch under fake tensors.

The captured module runs once on functional tensors (which turn in-place operations and views into pure
ones) over proxies (which record what reaches them), with autograd above both; for training the gradients are
taken inside the same run, so forward and backward come out as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from turret.errors import UnsupportedError
from turret.ir.index import size
from turret.plan import size_text
from turret.plugins.joint.analysis import Analysis, SeenInput, SeenOutput, layout_of
from turret.plugins.joint.cleanup import clean
from turret.plugins.joint.inputs import fresh, storage_length
from turret.plugins.joint.whole import WholeUpsampling
from turret.products import CapturedGraph, JointGraph
from turret.signature import (
    GraphOutput,
    GraphSignature,
    InputInfo,
    Layout,
    Mutation,
    OutputInfo,
    OutputKind,
    SyntheticBase,
)


@attrs.frozen(eq=False)
class _Inputs:
    """Fake inputs of the graph: the user's, with aliasing groups replaced by their common memory at the end.

    ``expand`` rebuilds the user's inputs from the graph's (tensors in, tensors out).
    """

    values: tuple[Any, ...]
    kept: tuple[int, ...] | None
    bases: tuple[SyntheticBase, ...]

    def expand(self, values: Sequence[Any]) -> list[Any]:
        if self.kept is None:
            return list(values)
        result: dict[int, Any] = dict(zip(self.kept, values, strict=False))
        for base, memory in zip(self.bases, values[len(self.kept) :], strict=True):
            for member, layout in zip(base.members, base.layouts, strict=True):
                result[member] = memory.as_strided(layout.shape, layout.stride, layout.offset)
        return [result[n] for n in range(len(result))]


def _graph_inputs(captured: CapturedGraph, analysis: Analysis) -> _Inputs:
    values = captured.example_inputs
    with captured.fake_mode:
        made = fresh(values, gradients=False)
        if not analysis.aliased:
            return _Inputs(tuple(made), None, ())
        bases, memories = [], []
        for group in analysis.aliased:
            members = [values[m] for m in group.members]
            if any(v.requires_grad for v in members) or any(analysis.inputs[m].tracked for m in group.members):
                raise UnsupportedError(f"inputs {group.members} share memory, one is mutated, and one needs gradients")
            if any(analysis.inputs[m].layout is not None for m in group.members):
                raise UnsupportedError(f"inputs {group.members} share memory and one has its shape changed in place")
            start = min(v.storage_offset() for v in members)
            length = max(storage_length(v) for v in members) - start
            if not isinstance(length, int):
                raise UnsupportedError(f"inputs {group.members} share memory, one is mutated, and sizes are dynamic")
            layouts = tuple(_static(layout_of(v, start)) for v in members)
            bases.append(SyntheticBase(group.members, layouts, length))
            memories.append(torch.empty(length, dtype=members[0].dtype, device=members[0].device))
    inside = {m for group in analysis.aliased for m in group.members}
    kept = tuple(n for n in range(len(values)) if n not in inside)
    return _Inputs((*(made[n] for n in kept), *memories), kept, tuple(bases))


def _static(layout: Layout) -> Layout:
    if any(isinstance(v, str) for v in (*layout.shape, *layout.stride, layout.offset)):
        raise UnsupportedError("inputs share memory, one is mutated, and sizes are dynamic")
    return layout


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@attrs.define
class _Recorder:
    """The function that is traced, and what it learns on the way: the signature."""

    captured: CapturedGraph
    analysis: Analysis
    inputs: _Inputs
    graph_outputs: list[GraphOutput] = attrs.field(factory=list)
    updated: dict[int, int] = attrs.field(factory=dict)
    outputs: list[OutputInfo] = attrs.field(factory=list)
    strides: list[tuple[Any, ...]] = attrs.field(factory=list)

    def forget(self) -> None:
        """Start over: the function runs once to learn the tangents' layouts and once to be recorded."""
        for learned in (self.graph_outputs, self.updated, self.outputs, self.strides):
            learned.clear()

    def seen(self, number: int) -> SeenInput:
        """What happened to input ``number`` of the graph."""
        kept = self.inputs.kept
        if kept is None:
            return self.analysis.inputs[number]
        if number < len(kept):
            return self.analysis.inputs[kept[number]]
        return SeenInput(Mutation.DATA, False, False)

    def run(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the module on functional tensors; returns the graph's forward outputs, functional still.

        In-place operations work on copies of inputs that need gradients, as these are leaves of this run.
        """
        given = [
            v.clone() if _differentiable(v) and self.seen(n).mutation is not Mutation.NONE else v
            for n, v in enumerate(values)
        ]
        given = [_preserve(v, g) if g is not v else g for v, g in zip(values, given, strict=True)]
        with preserve_node_meta():
            results = fx.Interpreter(self.captured.module).run(*self.inputs.expand(given))
        forward: list[Any] = []
        for number, value in enumerate(given):
            if isinstance(value, FunctionalTensor) and _written(value):
                value = value if self.seen(number).tracked else value.detach()
                self.updated[number] = self._emit(forward, value, visible=False)
        bases: dict[int, int] = {}
        for seen, value in zip(self.analysis.outputs, results, strict=True):
            self.outputs.append(self._output(forward, seen, value, bases))
        return forward, given

    def _emit(self, forward: list[Any], value: Any, stride: Any = None, visible: bool = True) -> int:
        """One more forward output, in the strides that eager gives it (its own where not given)."""
        forward.append(value)
        stride = tuple(value.stride()) if stride is None else stride
        self.strides.append(stride)
        self.graph_outputs.append(
            GraphOutput(
                shape=tuple(map(_text, value.shape)),
                stride=tuple(map(_text, stride)),
                dtype=str(value.dtype).removeprefix("torch."),
                device=str(value.device),
                differentiable=_differentiable(value),
                visible=visible,
            )
        )
        return len(forward) - 1

    def _output(self, forward: list[Any], seen: SeenOutput, value: Any, bases: dict[int, int]) -> OutputInfo:
        match seen.kind:
            case OutputKind.CONSTANT:
                return OutputInfo(seen.kind, value=seen.value)
            case OutputKind.SIZE:
                return OutputInfo(seen.kind, value=seen.value)
            case OutputKind.IS_OUTPUT:
                return OutputInfo(seen.kind, seen.source)
            case OutputKind.IS_INPUT | OutputKind.ALIAS_OF_INPUT:
                return OutputInfo(seen.kind, seen.source, seen.requires_grad, seen.layout, seen.dtype)
            case OutputKind.ALIAS_OF_INTERMEDIATE:
                if seen.source not in bases:
                    base = value._base if value._base is not None else value
                    bases[seen.source] = self._emit(forward, base)
                index = bases[seen.source]
                return OutputInfo(seen.kind, index, seen.requires_grad, seen.layout)
        value = value if seen.requires_grad or not _differentiable(value) else value.detach()
        return OutputInfo(seen.kind, self._emit(forward, value, seen.stride), seen.requires_grad)

    def signature(self, training: bool) -> GraphSignature:
        infos = []
        for number in range(len(self.inputs.values)):
            seen, updated = self.seen(number), self.updated.get(number)
            mutation = _mutation(updated is not None, seen.layout is not None)
            infos.append(InputInfo(seen.requires_grad, mutation, updated, seen.layout, seen.tracked))
        return GraphSignature(
            inputs=tuple(infos),
            outputs=tuple(self.outputs),
            graph_outputs=tuple(self.graph_outputs),
            training=training,
            symbols=self.analysis.symbols,
            bases=self.inputs.bases,
            kept=self.inputs.kept,
        )


def _mutation(data: bool, metadata: bool) -> Mutation:
    if data:
        return Mutation.DATA_AND_METADATA if metadata else Mutation.DATA
    return Mutation.METADATA if metadata else Mutation.NONE


def _written(value: FunctionalTensor) -> bool:
    """Whether the run wrote to a functional tensor (some kernels do so without moving its version)."""
    torch._sync(value)
    return torch._functionalize_has_data_mutation(value.elem)


def _text(value: Any) -> Any:
    return size_text(size(value))


def _preserve(original: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """A clone in the very layout of its original (``clone`` makes overlapping or sparse layouts dense)."""
    if copy.stride() == original.stride():
        return copy
    raise UnsupportedError("an input that needs gradients is mutated and its layout is not dense")


def _functional_mode() -> FunctionalTensorMode:
    """Calls with effects (error checks of linear algebra) get tokens as they are met; ``clean`` drops them again."""
    return FunctionalTensorMode(_allow_token_discovery=True)


def _functional(value: Any) -> Any:
    return FunctionalTensor.to_functional(value) if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def trace(captured: CapturedGraph, analysis: Analysis, decompositions: Mapping) -> JointGraph:
    """Trace forward (inference) or forward and backward (training) to one functional graph."""
    recorder = _Recorder(captured, analysis, _graph_inputs(captured, analysis))
    build = _joint_function if analysis.training else _forward_function
    values = list(recorder.inputs.values)
    with captured.fake_mode, torch.random.fork_rng(devices=[]):
        function, arguments = build(recorder, values)
        with enable_python_dispatcher(), WholeUpsampling(), torch.set_grad_enabled(analysis.training):
            tracer = make_fx(function, decomposition_table=dict(decompositions), record_module_stack=False)
            module = _follow(analysis, lambda: tracer(*arguments))
    clean(module)
    return JointGraph(
        module=module,
        signature=recorder.signature(analysis.training),
        num_forward_outputs=len(recorder.graph_outputs),
        fake_mode=captured.fake_mode,
        name=captured.name,
    )


def _follow(analysis: Analysis, run: Callable[[], fx.GraphModule]) -> fx.GraphModule:
    """Run the trace.  A tensor whose shape was changed in place through another name of it (a ``to`` that returned
    its argument) keeps its shape in a functional run, which then fails where the eager one did not."""
    try:
        return run()
    except RuntimeError as error:
        if any(seen.layout is not None for seen in analysis.inputs):
            raise UnsupportedError(
                f"an input had its shape changed in place, and the trace lost track: {error}"
            ) from error
        raise


def _forward_function(recorder: _Recorder, values: list[Any]) -> tuple[Callable, list[Any]]:
    def forward(*primals: Any) -> list[Any]:
        with _functional_mode():
            results, _ = recorder.run([_functional(p) for p in primals])
            return [_plain(r) for r in results]

    return forward, values


def _joint_function(recorder: _Recorder, values: list[Any]) -> tuple[Callable, list[Any]]:
    """The traced function takes primals, then one tangent for each differentiable forward output."""
    tangents = _tangents(recorder, values)
    count = len(values)

    def joint(*arguments: Any) -> list[Any]:
        recorder.forget()
        with _functional_mode():
            primals = [_functional(p) for p in arguments[:count]]
            for number, primal in enumerate(primals):
                if isinstance(primal, torch.Tensor) and recorder.seen(number).requires_grad:
                    primal.requires_grad_()
            results, _ = recorder.run(primals)
            gradients = _gradients(results, primals, [_functional(t) for t in arguments[count:]])
            return [_plain(r) for r in (*results, *gradients)]

    return joint, [*values, *tangents]


def _gradients(results: list[Any], primals: list[Any], tangents: list[Any]) -> list[Any]:
    """One gradient or None for each primal."""
    outputs = [r for r in results if _differentiable(r)]
    wanted = [n for n, p in enumerate(primals) if _differentiable(p)]
    gradients: list[Any] = [None] * len(primals)
    if outputs and wanted:
        with preserve_node_meta():
            found = torch.autograd.grad(outputs, [primals[n] for n in wanted], tangents, allow_unused=True)
        for number, gradient in zip(wanted, found, strict=True):
            gradients[number] = gradient
    return gradients


def _tangents(recorder: _Recorder, values: list[Any]) -> list[Any]:
    """Fake tangents in the layouts of the differentiable forward outputs, learned from a run without recording."""
    with enable_python_dispatcher(), WholeUpsampling(), torch.enable_grad(), _functional_mode():
        primals = [_functional(v) for v in values]
        for number, primal in enumerate(primals):
            if isinstance(primal, torch.Tensor) and recorder.seen(number).requires_grad:
                primal.requires_grad_()
        results, _ = recorder.run(primals)
        layouts = zip(results, recorder.strides, strict=True)
        shapes = [(r.shape, stride, r.dtype, r.device) for r, stride in layouts if _differentiable(r)]
    return [torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype, device in shapes]
