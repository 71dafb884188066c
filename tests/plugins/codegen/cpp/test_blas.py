"""Products that generated code hands to BLAS itself: eager's bits, one native call, torch's own where it differs."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import ProductCandidate
from turret.plan import Call, Launch, Plan, View
from turret.plan.launch import functions
from turret.storage import libraries
from turret.torch_compat.native import blas_function

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(not blas_function("sgemm_"), reason="torch computes products with another library"),
]


class Watch:
    """Plugin: keeps products calls of the library, and the plans that were made."""

    def __init__(self) -> None:
        self.plans = list[Plan]()

    @hookimpl(tryfirst=True)
    def turret_choice_cost(self, candidate: ProductCandidate) -> float:
        return float(candidate.form != "library")

    @hookimpl
    def turret_event(self, event: object) -> None:
        made = getattr(event, "product", None)
        if isinstance(made, Plan):
            self.plans.append(made)

    @property
    def steps(self) -> list[Any]:
        return [step for plan in self.plans for step in plan.steps]

    def called(self) -> list[str]:
        return [step.op for step in self.steps if isinstance(step, Call)]


def compiled(function: Callable, watch: Watch, **options: Any) -> Callable:
    options = {"on_error": "raise", "cache": False} | options
    return turret.compile(function, options=options, plugins=[watch], dynamic=False)


LAYOUTS: dict[str, Callable[[int, int, torch.dtype], torch.Tensor]] = {
    "rows": lambda n, m, dtype: torch.randn(n, m, dtype=dtype),
    "columns": lambda n, m, dtype: torch.randn(m, n, dtype=dtype).t(),
    "rows with gaps": lambda n, m, dtype: torch.randn(n, m + 3, dtype=dtype)[:, 2:-1],
    "columns with gaps": lambda n, m, dtype: torch.randn(m, n + 3, dtype=dtype).t()[1:-2],
    "a slice": lambda n, m, dtype: torch.randn(3, n, m, dtype=dtype)[1],
    "apart": lambda n, m, dtype: torch.randn(n, 2 * m, dtype=dtype)[:, ::2],
    "one row for all": lambda n, m, dtype: torch.randn(1, m, dtype=dtype).expand(n, m),
}


@given(
    st.tuples(*[st.sampled_from((1, 2, 3, 17, 40))] * 3),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from((torch.float32, torch.float64)),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_a_product_of_operands_in_any_layout_has_the_bits_of_eagers(
    sizes: tuple[int, int, int], left: str, right: str, dtype: torch.dtype, inside: bool
) -> None:
    rows, depth, columns = sizes
    torch.manual_seed(rows + depth + columns)
    x, w = LAYOUTS[left](rows, depth, dtype), LAYOUTS[right](depth, columns, dtype)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.neg() if inside else x) @ w

    got, expected = compiled(function, Watch())(x, w), function(x, w)
    assert got.stride() == expected.stride()
    assert torch.equal(got, expected)


def _twice(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(F.relu(F.linear(x, w, b)), w, b))


def _inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(48, 64), torch.randn(64, 64), torch.randn(64)


def test_layers_and_their_backward_are_one_launch_each() -> None:
    inputs = [t.requires_grad_() for t in _inputs()]
    watch = Watch()
    compiled(_twice, watch)(*inputs).sum().backward()
    got = [t.grad for t in inputs]
    for tensor in inputs:
        tensor.grad = None
    _twice(*inputs).sum().backward()
    torch.testing.assert_close(got, [t.grad for t in inputs], rtol=1e-4, atol=1e-4)
    assert watch.called() == []
    assert [sum(isinstance(step, Launch) for step in plan.steps) for plan in watch.plans] == [1, 1]


def test_a_weight_that_only_products_read_transposed_has_no_view() -> None:
    watch = Watch()
    compiled(_twice, watch)(*_inputs())
    assert not [step for step in watch.steps if isinstance(step, View)]


def test_a_transposed_weight_that_is_an_output_has_one() -> None:
    watch = Watch()
    x, w, _ = _inputs()
    got, turned = compiled(lambda x, w: (x @ w.t(), w.t()), watch)(x, w)
    assert torch.equal(got, x @ w.t())
    assert turned.data_ptr() == w.data_ptr()
    assert turned.stride() == w.t().stride()


@pytest.fixture
def _rounded() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_rounded")
def test_products_that_may_be_rounded_are_torchs_calls() -> None:
    watch = Watch()
    compiled(_twice, watch)(*_inputs())
    assert len(watch.called()) == 2


def test_products_whose_accesses_are_checked_are_torchs_calls() -> None:
    watch = Watch()
    compiled(_twice, watch, check_bounds=True)(*_inputs())
    assert len(watch.called()) == 2


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.complex64, torch.int64])
def test_products_of_other_dtypes_are_torchs_calls(kind: torch.dtype) -> None:
    watch = Watch()
    x, w = torch.ones(24, 80, dtype=kind), torch.ones(80, 40, dtype=kind)
    assert torch.equal(compiled(torch.mm, watch)(x, w), x @ w)


def test_a_library_whose_functions_are_missing_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[ctypes.CDLL]()

    def keep(content: bytes, name: str) -> ctypes.CDLL:
        opened.append(libraries.open_library(content, name))
        return opened[-1]

    monkeypatch.setattr(functions, "open_library", keep)
    compiled(_twice, Watch())(*_inputs())
    monkeypatch.setattr(functions, "blas_function", lambda name: 0)
    with pytest.raises(OSError, match="sgemm_"):
        functions.connect(opened[0])
