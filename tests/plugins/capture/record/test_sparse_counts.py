"""How many elements a sparse tensor has is what the data say, not what a fake tensor says."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same


def made(i, v):
    return torch.sparse_coo_tensor(i, v, (4, 4), check_invariants=False)


@pytest.mark.parametrize(
    "program",
    [
        lambda i, v: (made(i, v)._nnz(), made(i, v)._values().numel(), made(i, v)._indices().shape),
        lambda i, v: (made(i, v).coalesce()._nnz(), v * 2),
        lambda i, v: made(i, v).coalesce().indices(),
        lambda i, v: len(made(i, v).coalesce().values()),
        lambda i, v: v * 2 if (made(i, v) + made(i, v * 2)).coalesce()._nnz() > 2 else v * 3,
        lambda i, v: torch.Tensor.values(made(i, v).coalesce()) * 2,
        lambda i, v: (v.diag().to_sparse_csr()._nnz(), v.diag().to_sparse_csr().col_indices()),
        lambda i, v: (torch.sparse.mm(made(i, v), torch.ones(4, 2)), made(i, v).coalesce().to_dense()),
    ],
)
def test_counts_are_those_of_the_data(program):
    observed = Observed(program)
    for columns in ([2, 3, 3], [0, 1, 2], [1, 1, 1, 1]):
        i = torch.tensor([[1] * len(columns), columns])
        v = torch.arange(1.0, len(columns) + 1)
        assert_same(observed(i, v), program(i, v))
