"""What the driver asks of graphs: their device, strides that are demanded of them, inputs that were saved."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.op_traits import defines_unbacked_symbols
from turret.hooks.devices import HOST, device_for
from turret.hooks.products import BoxedCallable, CapturedGraph, PartitionedGraph, Role, Target
from turret.hooks.signature import GraphSignature, OutputKind
from turret.pipeline.keys.graph_key import devices_in
from turret.plan import SizeText, size_text
from turret.plan.sizes import compile_sizes


def guard_count(captured: CapturedGraph) -> int:
    shape_env = getattr(captured.fake_mode, "shape_env", None)
    return 0 if shape_env is None else len(shape_env.guards)


def target_of(captured: CapturedGraph) -> Target:
    """The device that a graph's tensors lie on; the other one where tensors of the host and of a device meet."""
    return _target(devices_in(captured))


def target_of_values(values: Iterable[Any]) -> Target:
    """The device that the tensors among ``values`` lie on, likewise."""
    devices = {device for x in values if isinstance(device := getattr(x, "device", None), torch.device)}
    return _target(sorted(devices, key=str))


def _target(devices: Sequence[torch.device]) -> Target:
    others = [device for device in devices if device.type != HOST.type]
    device = others[0] if others else HOST
    facts = device_for(device.type).properties(device.index or 0)
    return Target(device.type, device.index, facts.arch, facts.cores, facts.memory)


def saved_inputs(partitioned: PartitionedGraph, wanted: frozenset[int]) -> frozenset[int]:
    """Positions of a backward's inputs that are those of the forward at the positions ``wanted``, saved as they are."""
    inputs = partitioned.forward.graph.find_nodes(op="placeholder")
    among = {inputs[number] for number in wanted}
    (output,) = next(n for n in reversed(partitioned.forward.graph.nodes) if n.op == "output").args
    saved = output[partitioned.num_forward_outputs :][: len(partitioned.saved_tensors)]
    first = len(partitioned.saved_sizes)
    return frozenset(first + number for number, node in enumerate(saved) if node in among)


def overwritten_inputs(signature: GraphSignature) -> dict[int, int]:
    """Graph outputs that the epilogue copies into an input without autograd, and that nothing else is made of."""
    taken = [o.index for o in signature.outputs if o.kind in _OF_GRAPH_OUTPUTS]
    taken += [i.updated for i in signature.inputs if i.updated is not None]
    return {
        info.updated: number
        for number, info in enumerate(signature.inputs)
        if info.updated is not None and info.is_hidden_write and not info.negated
        if taken.count(info.updated) == 1 and not signature.bases
    }


_OF_GRAPH_OUTPUTS = (OutputKind.FRESH, OutputKind.ALIAS_OF_INTERMEDIATE, OutputKind.SIZE)


def output_strides(partitioned: PartitionedGraph, role: Role) -> tuple[tuple[Any, ...] | None, ...]:
    """Strides demanded of one graph's outputs.

    The user's outputs have eager's strides; saved tensors and gradients those of the trace, which the backward
    and autograd were prepared for.
    """
    module = partitioned.graph_of(role)
    (output,) = next(n for n in reversed(module.graph.nodes) if n.op == "output").args
    demanded = () if role == "backward" else partitioned.signature.graph_outputs
    strides: list[tuple[Any, ...] | None] = []
    names: dict[str, Any] | None = None
    for number, node in enumerate(output):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        stride: tuple[Any, ...] | None = tuple(value.stride()) if isinstance(value, torch.Tensor) else None
        if number < len(demanded) and stride is not None and demanded[number].stride != _texts(stride):
            stride = demanded[number].stride
            if not all(isinstance(s, int) for s in stride):
                names = _sizes_by_name(module) if names is None else names
                try:
                    named: dict[str, Any] = {**names, "max": _largest, "min": _smallest}
                    stride = compile_sizes(stride)(named)
                except NameError as error:
                    raise UnsupportedError(f"the strides {stride} of output {number} are no sizes of inputs") from error
        strides.append(stride)
    return tuple(strides)


def _texts(sizes: Iterable[Any]) -> tuple[SizeText, ...]:
    from turret.ir.index import size_of_inputs  # brings sympy, which a warm start does without

    return tuple(size_text(size_of_inputs(s)) for s in sizes)


def _sizes_by_name(module: fx.GraphModule) -> dict[str, Any]:
    """The symbols of a trace that its inputs are, or have as sizes or strides, and those that calls give.

    By the names that they were given: one that a guard has since made a number no longer has it in its expression.
    """
    found: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder" and not defines_unbacked_symbols(node):
            continue
        value = node.meta.get("val")
        for number in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(number, torch.SymInt) and number.node._expr.is_Symbol:
                found.setdefault(number.node._expr.name, number)
    return found


def _largest(*numbers: Any) -> Any:
    """``max`` that compares nothing, since which is larger may depend on data."""
    return functools.reduce(torch.sym_max, numbers)


def _smallest(*numbers: Any) -> Any:
    return functools.reduce(torch.sym_min, numbers)


def interpreted(module: fx.GraphModule) -> BoxedCallable:
    """An FX graph run node by node: the fallback where a graph does not compile."""

    def run(args: list[Any]) -> list[Any]:
        inputs = list(args)
        args.clear()
        with torch.no_grad():
            return list(fx.Interpreter(module).boxed_run(inputs))

    return run
