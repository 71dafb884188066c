"""ONNX models of graphs: what one is built with, and the graph of a cluster as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx

OPSET, IR_VERSION = 18, 9

ELEMENT = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
_NUMPY = {kind: helper.tensor_dtype_to_np_dtype(element) for kind, element in ELEMENT.items()}


class Builder:
    """Collects the nodes of one model; a value is its name (made here: with a slash before it), or a tuple of names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: dict[fx.Node, Any] = {}
        self.node: fx.Node

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of one ONNX operator."""
        name = f"/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """A number, or a list of numbers, known now."""
        name = f"/constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.array(value, _NUMPY[dtype]), name))
        return name

    def value(self, argument: Any, dtype: torch.dtype) -> str:
        """An argument as a tensor of ``dtype``: a node's, cast where it is of another one, or a number."""
        if not isinstance(argument, fx.Node):
            return self.constant(argument, dtype)
        own = dtype_of(argument)
        name = self.values[argument]
        return name if own == dtype else self.emit("Cast", name, to=ELEMENT[dtype])

    def sizes(self, sizes: Sequence[Any]) -> str:
        """A list of sizes, some of them numbers that the model is given, as a vector."""
        if not any(isinstance(s, fx.Node) for s in sizes):
            return self.constant([int(s) for s in sizes], torch.int64)
        one = self.constant([1], torch.int64)
        parts = [
            self.emit("Reshape", self.value(s, torch.int64), one) if isinstance(s, fx.Node) else self.sizes([s])
            for s in sizes
        ]
        return self.emit("Concat", *parts, axis=0)


def dtype_of(node: fx.Node) -> torch.dtype:
    """The dtype of a node's value; sizes are int64."""
    value = node.meta["val"]
    return value.dtype if isinstance(value, torch.Tensor) else torch.int64


def model_of(module: fx.GraphModule, translations: dict[Any, Callable[..., Any]]) -> bytes:
    """A cluster as a serialized ONNX model; sizes that are symbols are dimensions by name."""
    builder, inputs, outputs = Builder(), [], []
    for node in module.graph.nodes:
        builder.node = node
        match node.op:
            case "placeholder":
                builder.values[node] = node.name
                inputs.append(_info(node.name, node))
            case "call_function":
                builder.values[node] = _call(builder, node, translations)
            case "output":
                for number, result in enumerate(node.args[0]):
                    # A name of its own: a model may not give back an input, or one result twice, as it is.
                    name = f"/result {number}"
                    builder.nodes.append(helper.make_node("Identity", [builder.values[result]], [name]))
                    outputs.append(_info(name, result))
    graph = helper.make_graph(builder.nodes, "cluster", inputs, outputs, builder.constants)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()


def _call(builder: Builder, node: fx.Node, translations: dict[Any, Callable[..., Any]]) -> Any:
    if node.target in translations:
        return translations[node.target](builder, *node.args, **node.kwargs)
    return builder.values[node.all_input_nodes[0]][node.args[1]]  # an item of a call with several results


def _info(name: str, node: fx.Node) -> onnx.ValueInfoProto:
    value = node.meta["val"]
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return helper.make_tensor_value_info(name, ELEMENT[dtype_of(node)], [_dimension(s) for s in shape])


def _dimension(size: int | torch.SymInt) -> int | str:
    return size if isinstance(size, int) else str(size)
