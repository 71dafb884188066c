"""What a graph capture cannot record: work of the host, waits for values of the device, and what a user leaves out.

A recording is replayed without Python: whatever Python or the host decides, or reads, while it is made holds for all
replays.  The scheduler cuts a graph at such calls; where it is not asked to, a plan is not recorded at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.externs import op_name
from turret.graph.op_traits import is_collective
from turret.storage.codec import record
from turret.torch_compat.operators.ops import OpOverload

NAMED = "is named in cudagraph_split_ops"
"""Why a call is not recorded that the user names; also the reason why it is no part of a kernel."""

_WAIT = (
    "_assert_scalar _embedding_bag_sparse_backward _fused_moving_avg_obs_fq_helper "
    "_fused_moving_avg_obs_fq_helper_functional _linalg_check_errors _linalg_eigh _linalg_eigvals _linalg_svd "
    "_nested_tensor_from_mask allclose equal histc is_nonzero item linalg_eig linalg_eigvals linalg_ldl_factor "
    "linalg_lstsq multinomial segment_reduce _segment_reduce_backward tensor_split.tensor_indices_or_sections"
)
"""ATen ops without a tag for it whose kernels wait for values of the device: they check those on the host, or call a
solver that does."""

_CHECKED = "linalg_cholesky_ex linalg_inv_ex linalg_ldl_factor_ex linalg_lu_factor_ex _linalg_solve_ex linalg_solve_ex"
"""ATen ops that wait where they are asked to ``check_errors``."""

_MASKED = frozenset(("index", "_unsafe_index", "index_put", "_unsafe_index_put", "index_put_", "_index_put_impl_"))
"""ATen ops that count the elements of a mask on the host, where one of their indices is a mask."""

_DETERMINISTIC = frozenset(
    ("index_add", "index_copy", "index_put", "_index_put_impl", "put", "scatter", "scatter_add", "scatter_reduce")
)
"""ATen ops that take another way where ``torch.use_deterministic_algorithms`` holds."""

_RANDOM_STATE = frozenset(("run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state"))
_MASKS = (torch.bool, torch.uint8)


@record
@attrs.frozen
class Obstacle:
    """Why a step is not recorded: what runs, why it cannot be (the rest of the sentence), and the user's line."""

    what: str
    why: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.why}" + (f", at {self.source}" if self.source else "")


def border_text(obstacles: Sequence[Obstacle]) -> str:
    """How a printed schedule or plan shows where a section begins: recorded, or not and why."""
    return "\n".join(["  -- not recorded" if obstacles else "  -- recorded", *(f"  --   {o}" for o in obstacles)])


def short_name(op: Any) -> str:
    """The name of an op for people, without an overload that is the only one."""
    return op_name(op).removesuffix(".default").removesuffix(".graph")


def why_not_recorded(
    op: Any, arguments: Sequence[Any], index_dtypes: Iterable[torch.dtype] = (), collectives: bool = False
) -> str:
    """Why a graph capture cannot record a call, as the rest of a sentence about it; empty where it can.

    ``arguments``: all of them in the schema's order, as far as given.  ``index_dtypes``: those of the tensors in lists.
    ``collectives``: their backend can be recorded.
    """
    if not isinstance(op, OpOverload):
        return _why_not_higher_order(op)
    if is_collective(op) and not collectives:
        return "is a collective, which waits for other processes (cudagraph_collectives records it)"
    return _why_not_op(op) if op.namespace != "aten" else _why_not_aten(op, arguments, index_dtypes)


def _why_not_aten(op: OpOverload, arguments: Sequence[Any], index_dtypes: Iterable[torch.dtype]) -> str:
    name = op._schema.name.partition("::")[2]
    if name in _MASKED:  # tagged for its masks alone
        if any(dtype in _MASKS for dtype in index_dtypes):
            return "counts the elements of a mask on the host"
        return _why_not_deterministic(name)
    if name in _checked_names() and _asked_to_check(op, arguments):
        return "checks on the host whether it succeeded (check_errors)"
    if name == "histc" and _bounds_are_given(arguments):
        return ""
    return _why_not_op(op) or _why_not_deterministic(name)


def _bounds_are_given(arguments: Sequence[Any]) -> bool:
    """Whether ``histc`` is given its bounds; where they are equal it looks for the smallest and largest element."""
    bounds = arguments[2:4]
    return len(bounds) == 2 and all(isinstance(b, int | float) for b in bounds) and bounds[0] != bounds[1]


def _why_not_higher_order(op: Any) -> str:
    name = getattr(op, "_name", "")
    if name in _RANDOM_STATE:
        return "saves or restores the state of a random number generator"
    return "decides on the host what runs next"


@functools.cache
def _why_not_op(op: OpOverload) -> str:
    """What is known of an op whatever its arguments."""
    name = op._schema.name.partition("::")[2]
    if torch.Tag.cudagraph_unsafe in op.tags:
        return "is tagged cudagraph_unsafe"
    if torch.Tag.dynamic_output_shape in op.tags:
        return "makes a tensor whose size depends on data"
    waits = op.namespace == "aten" and {name, f"{name}.{op._overloadname}"} & _waiting_names()
    if torch.Tag.data_dependent_output in op.tags or waits:
        return "waits on the host for values of the device"
    if op.namespace == "turret" and name == "fail":
        return "raises an error"
    return ""


@functools.cache
def _waiting_names() -> frozenset[str]:
    return frozenset(_WAIT.split())


@functools.cache
def _checked_names() -> frozenset[str]:
    return frozenset(_CHECKED.split())


def _asked_to_check(op: OpOverload, arguments: Sequence[Any]) -> bool:
    names = [a.name for a in op._schema.arguments]
    return any(n == "check_errors" and value is True for n, value in zip(names, arguments, strict=False))


def _why_not_deterministic(name: str) -> str:
    if name.removeprefix("_unsafe_").rstrip("_") in _DETERMINISTIC and torch.are_deterministic_algorithms_enabled():
        return "scatters by deterministic algorithms (torch.use_deterministic_algorithms)"
    return ""


def is_named(names: Iterable[str], *known: str) -> bool:
    """Whether a user's names (``ns::op``, ``ns::op.overload``, ``torch.ops.ns.op``) name something known by these."""
    wanted = {_normal(name) for name in names}
    found = {_normal(name) for name in known if name}
    return bool(wanted & (found | {name.partition(".")[0] for name in found}))


def _normal(name: str) -> str:
    name = name.strip().removeprefix("torch.ops.")
    return name if "::" in name else name.replace(".", "::", 1)
