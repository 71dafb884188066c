"""Lines of generated code, which tracebacks show: kept as long as the code is."""

from __future__ import annotations

import linecache
import types
import weakref
from typing import Any

import torch
from torch import fx
from torch.fx import graph_module


def show_lines(function: types.FunctionType, text: str) -> None:
    """Let tracebacks show the lines of a function that was made of ``text``; its file name must be its own."""
    name = function.__code__.co_filename
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    weakref.finalize(function, linecache.cache.pop, name, None).atexit = False


def new_graph_module(root: torch.nn.Module, graph: fx.Graph, name: str = "GraphModule") -> fx.GraphModule:
    """A graph as a module, whose generated code goes when it does; torch keeps the code of all that were ever made."""
    if type(graph._codegen) is fx.CodeGen and any(map(_is_misread, graph.nodes)):
        graph.set_codegen(ExactNumbers())
    made = fx.GraphModule(root, graph, name)
    weakref.finalize(made, _forget, made.forward.__code__.co_filename).atexit = False
    return made


def _forget(name: str) -> None:
    linecache.cache.pop(name, None)
    graph_module._loader.eval_cache.pop(name, None)


class _Complex(complex):
    """A complex number whose text reads as the same number: Python's own loses signs of zeros, and is no code for NaN
    and infinities."""

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"


class ExactNumbers(fx.CodeGen):
    """Generated code with complex numbers as they are, from which other ways to generate code derive."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        misread = {node: (node.args, node.kwargs) for node in nodes if _is_misread(node)}
        for node, given in misread.items():
            node.args, node.kwargs = fx.node.map_aggregate(given, lambda a: _Complex(a) if type(a) is complex else a)
        try:
            return super()._gen_python_code(nodes, *args, **kwargs)
        finally:
            for node, given in misread.items():
                node.args, node.kwargs = given


def _is_misread(node: fx.Node) -> bool:
    """Whether a call has a complex number among its arguments, at any depth."""
    found = []
    fx.node.map_aggregate((node.args, node.kwargs), lambda a: found.append(a) if type(a) is complex else None)
    return bool(found)
