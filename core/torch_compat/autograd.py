"""What autograd keeps of calls and of tensors, by which gradients are told apart and views may be written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules import _functions

BackwardHookFunction = _functions.BackwardHookFunction
"""What a module with full backward hooks passes its inputs and its results through."""
current_graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward that runs; -1 where none does."""
current_node = torch._C._current_autograd_node
"""The node whose backward runs, or None."""
runs_node: Callable[[Any], bool] = torch._C._will_engine_execute_node
"""Whether a node that leads on is run by the backward that runs."""
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
"""Whether the backward that runs leaves what nodes have saved for another (``retain_graph``)."""
sequence_number = torch.autograd._get_sequence_nr
"""The number that the next node gets: nodes are numbered in the order of the calls."""
preserve_version_counter = torch.autograd._unsafe_preserve_version_counter
"""A context whose writes to a tensor do not count."""
set_version_counters = torch._C._autograd._unsafe_set_version_counter
"""``set_version_counters(tensors, versions)``: have as many writes to each of the tensors been counted."""
CreationMeta = torch._C._autograd.CreationMeta
"""How a view was made, which decides whether it may be written to."""
creation_meta_of = torch._C._autograd._get_creation_meta
"""That of a view."""
set_creation_meta = torch._C._autograd._set_creation_meta
"""Give a view another one."""
top_saved_tensor_hooks: Callable[[bool], tuple[Callable[..., Any], Callable[..., Any]] | None]
top_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""``top_saved_tensor_hooks(False)``: the pack and unpack hook that autograd uses now, or None."""
set_saved_tensor_hooks_traced = torch._C._autograd._saved_tensors_hooks_set_tracing
"""Whether hooks on saved tensors are left to a tracer, which then finds them unused; gives what was before."""
set_autograd_compiler = torch._C._dynamo.compiled_autograd.set_autograd_compiler
"""What compiles backwards in torch's compiled autograd, and whether for sizes that change; gives what was before."""


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``, from which a view in inference mode may not lose its history.

    Autograd makes the history of a view anew when it is first asked for after a write to its memory; in inference mode
    that ends in an internal error, or leaves a tensor that requires gradients and has none to hand on (torch 2.13).
    """
    if torch.is_inference_mode_enabled() and tensor._is_view():
        with torch.inference_mode(False):
            return tensor.is_leaf
    return tensor.is_leaf


def is_known_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf; not one is a view whose history autograd cannot make again, and says so by raising.

    Views are such after writes that autograd forbids, or where their base has got another shape since.
    """
    try:
        return is_leaf(tensor)
    except (RuntimeError, IndexError):
        return False


def forward_ad_level() -> int:
    """The level of forward-mode AD in which this thread is; -1 outside of any."""
    return forward_ad._current_level
