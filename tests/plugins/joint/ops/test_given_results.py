"""What is written to a tensor that the program gives (``out=``) is computed as eager computes it for that tensor."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import turret

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
SUMS = {
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "all": lambda x, out: torch.sum(x, (0, 1), keepdim=True, out=out),
    "nansum": lambda x, out: torch.nansum(x, 1, out=out),
    "prod": lambda x, out: torch.prod(x, 0, out=out),
    "mean": lambda x, out: torch.mean(x, 1, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cumprod": lambda x, out: torch.cumprod(x, 1, out=out),
    "logsumexp": lambda x, out: torch.logsumexp(x, 1, keepdim=True, out=out),
    "given a dtype": lambda x, out: torch.sum(x, 0, dtype=torch.float64, out=out),
    "an overload": lambda x, out: torch.ops.aten.sum.IntList_out(x, [0], out=out),
}


def ended(function, x: Tensor, dtype: torch.dtype) -> Tensor | str:
    try:
        return function(x, dtype)
    except RuntimeError as error:
        return str(error)


def into(name: str):
    """A function that gives the sum in a tensor of a dtype."""

    def function(x: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(0, dtype=dtype)
        SUMS[name](x, out)
        return out

    return function


@settings(max_examples=40)
@given(st.sampled_from(sorted(SUMS)), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 9))
def test_a_sum_is_computed_in_the_dtype_of_the_tensor_that_it_is_written_to(name, dtype, out_dtype, seed) -> None:
    x = (torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    got = ended(turret.compile(into(name), fullgraph=True, options={"cache": False}), x, out_dtype)
    expected = ended(into(name), x, out_dtype)
    if isinstance(got, str) or isinstance(expected, str):
        assert got == expected
        return
    # Eager rounds products of half types after each factor, and each step of a logarithm of a sum.
    places = [torch.finfo(kind).eps for kind in (dtype, out_dtype) if kind.is_floating_point]
    place = max(places) if name == "logsumexp" else places[-1] if out_dtype.is_floating_point else 0
    torch.testing.assert_close(got, expected, rtol=5 * place, atol=5 * place)


def test_a_number_of_singular_values_is_written() -> None:
    x, written = torch.diag(torch.tensor([1.0, 2.0, 0.0])), torch.zeros((), dtype=torch.float64)
    turret.compile(lambda x, out: torch.linalg.matrix_rank(x, out=out))(x, written)
    assert written.item() == 2
