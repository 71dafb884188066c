"""Indices that are mapped over by ``torch.vmap`` are parts of the graph, and select what eager's do."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

TABLE = torch.arange(20.0).reshape(5, 4)
ROWS, COLUMNS = torch.tensor([1, 2, 0]), torch.tensor([0, 1, 1])
KEYS = {
    "both": lambda i, j: TABLE[i, j],
    "with a number": lambda i, j: TABLE[i, 0],
    "behind a slice": lambda i, j: TABLE[:, j],
    "twice": lambda i, j: TABLE[i][j],
    "behind an ellipsis": lambda i, j: TABLE[..., j - 1],
    "with new dimensions": lambda i, j: TABLE[None, i, None, j, ...],
    "with a tensor": lambda i, j: TABLE[i, COLUMNS],
    "with a part": lambda i, j: TABLE[i, 1:],
    "with one that is known": lambda i, j: TABLE[torch.tensor(2), j],
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_under_one_vmap_and_under_two(key):
    def once(rows, columns):
        return torch.vmap(key)(rows, columns)

    def twice(rows, columns):
        return torch.vmap(lambda i: torch.vmap(lambda j: key(i, j))(columns))(rows)

    for program in (once, twice):
        torch.testing.assert_close(Observed(program, fullgraph=True)(ROWS, COLUMNS), program(ROWS, COLUMNS))
