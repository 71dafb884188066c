"""Rules for strides and dtypes that torch's own references follow, and eager's kernels with them."""

from __future__ import annotations

import torch._prims_common

is_contiguous_or_false = torch._prims_common.is_contiguous_or_false
"""Whether a tensor is contiguous; no where symbolic sizes do not tell, and nothing is guarded on."""
is_non_overlapping_and_dense = torch._prims_common.is_non_overlapping_and_dense_or_false
"""Whether elements of a tensor have places of their own with none free in between; no where symbols do not tell."""
suggest_memory_format = torch._prims_common.suggest_memory_format
"""The memory format that a result takes after its operand."""
type_to_dtype = torch._prims_common.type_to_dtype
"""The dtype of tensors of Python's numbers of a type."""
elementwise_dtypes = torch._prims_common.elementwise_dtypes
"""The dtypes in which an elementwise op computes and gives its result."""
TypePromotion = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND
"""The kinds of promotion that it takes."""
elementwise_permutation = torch._prims_common.compute_elementwise_output_logical_to_physical_perm
"""The order of dimensions in memory of an elementwise result."""
