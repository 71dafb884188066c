"""Lines of generated code, which tracebacks show: kept as long as the code is."""

from __future__ import annotations

import linecache
import types
import weakref

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
    made = fx.GraphModule(root, graph, name)
    weakref.finalize(made, _forget, made.forward.__code__.co_filename).atexit = False
    return made


def _forget(name: str) -> None:
    linecache.cache.pop(name, None)
    graph_module._loader.eval_cache.pop(name, None)
