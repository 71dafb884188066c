"""The core op set: every op that a graph may hold after decomposition, by family.

A code generator writes lowerings for these ops and needs no others.  ``EXTERN`` ops are known library calls
(matmul, convolution, attention, sort, FFT ...).  Any op that is not in the table is outside the op set and runs as
an extern ATen call too; ``outside_op_set`` names those, with the reason, so that nobody has to guess
why an op was not compiled.

The table is data: names are resolved once, and names that this version of torch lacks are left out.
``add``/``sub`` carry ``alpha``; ``sum``/``prod``/``cumsum``/``cumprod`` carry ``dtype``; ``any``/``all`` take any
dtype; ``argmax``/``argmin`` take the first of equal values and NaN as the extreme.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch import fx

from turret.graph import scalar_ops
from turret.graph.dtypes import COMPILED
from turret.graph.ops import define_own_ops
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, load_prims


class Family(enum.Enum):
    """How an op reads and writes; decides which lowering pattern and which cost rule it follows."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    VIEW = "view"
    INDEX = "index"
    SCATTER = "scatter"
    WINDOW = "window"
    RANDOM = "random"
    CREATION = "creation"
    SIZE = "size"
    EXTERN = "extern"


_POINTWISE = """
relu fmax fmin clamp clamp.Tensor clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor clone
prims.convert_element_type copy_
"""
"""Beside those that the table of scalar ops names."""

_REDUCTION = """
sum.dim_IntList prod prod.dim_int amax amin argmax argmin any any.dim any.dims all all.dim all.dims
var_mean.correction
"""

_SCAN = "cumsum cumprod"

_VIEW = """
view alias permute unsqueeze squeeze.dims expand slice.Tensor select.int as_strided diagonal unfold
turret.as_strided
"""

_INDEX = """
cat constant_pad_nd gather index.Tensor _unsafe_index.Tensor index_select embedding flip
"""

_SCATTER = """
scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two index_put
index_add index_copy _unsafe_index_put slice_scatter select_scatter diagonal_scatter as_strided_scatter masked_scatter
"""

_WINDOW = """
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
adaptive_max_pool3d adaptive_max_pool3d_backward
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest1d_backward upsample_nearest2d_backward
upsample_nearest3d_backward _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_trilinear3d
upsample_trilinear3d_backward upsample_bicubic2d upsample_bicubic2d_backward
"""

_RANDOM = "turret.seed turret.random"

_CREATION = "full empty.memory_format prims.iota scalar_tensor"

_SIZE = """
sym_size.int sym_stride.int sym_numel sym_storage_offset
"""

_EXTERN = """
vdot _fft_r2c _fft_c2r _fft_c2c sort sort.stable topk kthvalue median median.dim nanmedian nanmedian.dim mode
cummax cummin logcumsumexp nonzero masked_select _local_scalar_dense bincount histc searchsorted.Tensor
searchsorted.Scalar embedding_dense_backward _embedding_bag _embedding_bag_forward_only
_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward _cdist_forward _cdist_backward
_pdist_forward _pdist_backward _ctc_loss _ctc_loss_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
grid_sampler_3d_backward _thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer mkldnn_rnn_layer_backward
linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_lu linalg_lu_solve linalg_ldl_factor_ex
turret.frozen_linear turret.frozen_convolution turret.lstm_layer turret.lstm_layer_backward
turret.packed_layers turret.packed_layers_backward turret.host_math
linalg_ldl_solve linalg_eig linalg_eigvals _linalg_eigh linalg_householder_product linalg_lstsq linalg_matrix_exp
linalg_qr linalg_solve_triangular _linalg_solve_ex _linalg_svd _linalg_det _linalg_slogdet linalg_pinv.atol_rtol_tensor
triangular_solve cholesky_solve cholesky_inverse geqrf ormqr lu_unpack
bernoulli bernoulli.p bernoulli.Tensor rand randn randint randint.low randperm rand_like randn_like randint_like
randint_like.low_dtype normal_functional uniform exponential multinomial poisson binomial native_dropout
view.dtype view_as_real view_as_complex complex polar _conj _neg_view _to_copy
empty_strided _conj_physical _linalg_check_errors copy turret.as_strided_scatter
digamma polygamma erfinv igamma igammac i0 mvlgamma index_reduce segment_reduce
_unique2 unique_dim unique_consecutive unique_dim_consecutive
nll_loss2d_forward nll_loss2d_backward
"""

_TEMPLATE_TEXT = {
    "matmul": "mm bmm addmm baddbmm mv dot _int_mm _grouped_mm _weight_int8pack_mm",
    "convolution": "convolution convolution_backward",
    "attention": """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward
    """,
}

TEMPLATE_KINDS = tuple(_TEMPLATE_TEXT)
"""Forms of contractions that kernels are generated for from templates."""

_TABLE_TEXT = {
    Family.POINTWISE: _POINTWISE,
    Family.REDUCTION: _REDUCTION,
    Family.SCAN: _SCAN,
    Family.VIEW: _VIEW,
    Family.INDEX: _INDEX,
    Family.SCATTER: _SCATTER,
    Family.WINDOW: _WINDOW,
    Family.RANDOM: _RANDOM,
    Family.CREATION: _CREATION,
    Family.SIZE: _SIZE,
    Family.EXTERN: " ".join([_EXTERN, *_TEMPLATE_TEXT.values()]),
}


@functools.cache
def core_ops() -> dict[Any, Family]:
    """The table ``OpOverload -> Family`` of this torch version; treat it as read-only."""
    named = [(Family.POINTWISE, scalar_ops.aten_names())]
    named += [(family, text.split()) for family, text in _TABLE_TEXT.items()]
    table = {resolve(name): family for family, names in named for name in names}
    table.pop(None, None)
    return table


scalar_ops.when_changed(core_ops.cache_clear)


def resolve(name: str) -> Any | None:
    """The overload named ``[namespace.]op[.overload]`` (namespace ``aten``, overload ``default``), or None."""
    parts = name.split(".")
    namespace = "aten"
    if parts[0] in ("prims", "turret"):
        namespace, parts = parts[0], parts[1:]
        _load_namespace(namespace)
    packet = getattr(getattr(torch.ops, namespace), parts[0], None)
    return getattr(packet, parts[1] if len(parts) > 1 else "default", None)


def _load_namespace(namespace: str) -> None:
    """Load the module that defines the ops of a namespace which torch or Turret defines lazily."""
    if namespace == "prims":
        load_prims()
    elif namespace == "turret":
        define_own_ops()


def family_of(op: Any) -> Family | None:
    """The family of an op overload, or None when it is outside the op set."""
    return core_ops().get(op)


@functools.cache
def _template_kinds() -> dict[Any, str]:
    kinds = {resolve(name): kind for kind, text in _TEMPLATE_TEXT.items() for name in text.split()}
    kinds.pop(None, None)
    return kinds


def template_kind(op: Any) -> str | None:
    """Which of ``TEMPLATE_KINDS`` a library call is, or None."""
    return _template_kinds().get(op)


def is_compiled_dtype(dtype: torch.dtype) -> bool:
    """Whether generated kernels compute with ``dtype``."""
    return dtype in COMPILED


@attrs.frozen
class OutsideOp:
    """One call that runs as an extern ATen call because of ``reason``; ``node`` is the node's name."""

    node: str
    op: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.op} ({self.reason})"


def outside_op_set(module: fx.GraphModule) -> tuple[OutsideOp, ...]:
    """Every call of a graph that is not in the core op set, in graph order, each with its reason."""
    return tuple(_outside(module.graph))


def _outside(graph: fx.Graph) -> Iterator[OutsideOp]:
    for node in graph.nodes:
        if node.op in ("call_module", "call_method"):
            yield OutsideOp(node.name, str(node.target), f"a {node.op} node, not an ATen call")
        elif node.op == "call_function":
            reason = why_unsupported(node.target)
            if reason:
                yield OutsideOp(node.name, str(node.target), reason)


def why_unsupported(target: Any) -> str:
    """Why a call target is outside the core op set; empty when it is inside."""
    if isinstance(target, OpOverload):
        if target in core_ops():
            return ""
        if target.namespace not in ("aten", "prims", "turret"):
            return f"custom op of namespace {target.namespace!r}"
        return "no decomposition into the op set"
    if isinstance(target, HigherOrderOperator):
        return "higher-order op"
    module = getattr(target, "__module__", "")
    if module in (
        "_operator",
        "math",
        "builtins",
        "torch",
        "torch.fx.experimental.symbolic_shapes",
    ) or module.startswith("torch.utils._sympy"):
        return ""
    return "not an ATen op"
