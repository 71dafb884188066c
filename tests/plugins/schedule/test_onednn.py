"""Large products on the CPU as calls of oneDNN: the values, layouts and gradients of eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F

import turret
from turret.hooks.devices import ProductCosts, ProductTime
from turret.hooks.hookspecs import hookimpl
from turret.ir import ProductCandidate, Schedule
from turret.plugins.schedule import onednn
from turret.plugins.schedule.products import estimated_cost
from turret.torch_compat.operators.packing import has_packing

pytestmark = pytest.mark.skipif(not has_packing(), reason="this torch has no oneDNN")


class Chooser:
    """Plugin: takes oneDNN wherever it is offered, and keeps the forms that were chosen."""

    def __init__(self, form: str = "onednn") -> None:
        self.form, self.forms, self.calls = form, list[str](), list[str]()

    @hookimpl(tryfirst=True)
    def turret_choice_cost(self, candidate: ProductCandidate) -> float:
        return float(candidate.form != self.form)

    @hookimpl
    def turret_event(self, event: object) -> None:
        made = getattr(event, "product", None)
        if isinstance(made, Schedule):
            self.forms += [choice.form for choice in made.choices]


def compiled(function: Callable, *plugins: Any, dynamic: bool = False) -> Callable:
    return turret.compile(function, options={"on_error": "raise", "cache": False}, plugins=[*plugins], dynamic=dynamic)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are large."""
    monkeypatch.setattr(onednn, "LEAST_OF_ONEDNN", 1)


def agree(got: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert got is not None and expected is not None
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


X, W, B = torch.randn(24, 80), torch.randn(40, 80), torch.randn(40)
ONEDNN: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "linear": (F.linear, (X, W, B)),
    "linear without bias": (F.linear, (X, W)),
    "rows of a batch": (F.linear, (torch.randn(2, 3, 80), W, B)),
    "matrix as it lies": (torch.mm, (X, torch.randn(80, 40))),
    "matrix cut out of another": (lambda x, w: x @ w[40:].t(), (X, torch.randn(80, 80))),
    "matrix of more dimensions": (lambda x, w: x @ w.view(40, 80).t(), (X, torch.randn(4, 10, 80))),
    "matrix made inside": (lambda x, w: x @ (w * 2).t(), (X, W)),
    "into what comes behind": (lambda x, w, b: F.gelu(F.linear(x.sin(), w, b)) + 1, (X, W, B)),
    "turned rows": (lambda g, x: g.t() @ x, (torch.randn(80, 24), torch.randn(80, 40))),
    "turned rows and matrix": (lambda g, x: g.t() @ x.t(), (torch.randn(80, 24), torch.randn(40, 80))),
    "turned rows made inside": (lambda g, x: (g * 2).t() @ x.sin(), (torch.randn(80, 24), torch.randn(80, 40))),
    "one weight twice": (lambda x, w: F.linear(x, w) + F.linear(x.cos(), w), (X, W)),
    "bias with a beta of 0": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0), (X, W, B)),
}
LIBRARY: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "rows with gaps": (lambda x, w: x[:, :80] @ w.t(), (torch.randn(24, 100), W)),
    "matrix with gaps": (lambda x, w: x @ w[:, :80].t(), (X, torch.randn(40, 100))),
    "bias of each row": (lambda x, w, b: torch.addmm(b[:24, None], x, w.t()), (X, W, B)),
    "an expanded bias": (lambda x, w, b: torch.addmm(b[:1].expand(40), x, w.t()), (X, W, B)),
    "scaled": (lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2), (X, W, B)),
    "scaled bias": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=2), (X, W, B)),
    "little depth": (lambda x, w: x @ w, (torch.randn(24, 16), torch.randn(16, 40))),
    "double": (F.linear, (X.double(), W.double())),
    "half": (F.linear, (X.bfloat16(), W.bfloat16())),
    "a batch": (torch.bmm, (torch.randn(2, 24, 80), torch.randn(2, 80, 40))),
}


@pytest.mark.parametrize("name", ONEDNN)
def test_products_as_calls_of_onednn_agree_with_eager(name: str) -> None:
    function, arguments = ONEDNN[name]
    chooser = Chooser()
    with torch.no_grad():
        agree(compiled(function, chooser)(*arguments), function(*arguments))
    assert chooser.forms and set(chooser.forms) == {"onednn"}


@pytest.mark.parametrize("name", LIBRARY)
def test_other_products_are_not_offered_it(name: str) -> None:
    function, arguments = LIBRARY[name]
    chooser = Chooser()
    with torch.no_grad():
        got, expected = compiled(function, chooser)(*arguments), function(*arguments)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)
    assert "onednn" not in chooser.forms


def test_those_of_sizes_that_change_are_not_offered_it() -> None:
    chooser = Chooser()
    made = compiled(lambda x, w: F.linear(x, w), chooser, dynamic=True)
    for rows in (24, 25):
        x = torch.randn(rows, 80)
        agree(made(x, W), F.linear(x, W))
    assert "onednn" not in chooser.forms


def test_gradients_agree_with_eager() -> None:
    chooser = Chooser()
    layers = torch.nn.Sequential(torch.nn.Linear(80, 96), torch.nn.GELU(), torch.nn.Linear(96, 72))
    made = compiled(layers, chooser)
    results = []
    for call in (made, layers):
        x = X.clone().requires_grad_()
        layers.zero_grad(set_to_none=True)
        y = call(x)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in layers.parameters())])
    for got, expected in zip(*results, strict=True):
        agree(got, expected)
    # Both layers and the gradients of both layers' rows; the rows of those of the weights are too few to be deep.
    assert chooser.forms.count("onednn") == 4


@pytest.mark.parametrize("rows", [72, 200])
def test_gradients_of_weights_agree_with_eager(rows: int) -> None:
    chooser, layer = Chooser(), torch.nn.Linear(80, 96)
    x = torch.randn(rows, 80)
    results = []
    for call in (compiled(layer, chooser), layer):
        layer.zero_grad(set_to_none=True)
        call(x).square().sum().backward()
        results.append([p.grad for p in layer.parameters()])
    for got, expected in zip(*results, strict=True):
        agree(got, expected)
    assert chooser.forms.count("onednn") == 2


def asked_for(turned: bool) -> ProductCandidate:
    """The candidate of oneDNN for a large product."""
    asked: list[ProductCandidate] = []

    class Asked:
        @hookimpl(tryfirst=True)
        def turret_choice_cost(self, candidate: ProductCandidate) -> float:
            asked.append(candidate)
            return float(candidate.form != "library")

    x, w = torch.randn(256, 256), torch.randn(256, 256)
    with torch.no_grad():
        compiled(lambda x, w: (x.t() if turned else x) @ w, Asked())(x, w)
    return next(candidate for candidate in asked if candidate.form == "onednn")


def test_rows_that_lie_across_cost_their_copy_where_it_was_measured() -> None:
    library, onednn_time = ProductTime(2.0, 1e5, 1e5), ProductTime(14.0, 1e5, 2e5)
    costs = ProductCosts(library, library, onednn=onednn_time, large_library=library)
    plain, turned = asked_for(False), asked_for(True)
    assert (plain.padding_bytes, turned.padding_bytes) == (0, 2 * 4 * 256 * 256)
    at_once = estimated_cost(plain, costs)
    assert at_once is not None and estimated_cost(turned, costs) is None
    copying = attrs.evolve(costs, onednn_copy=ProductTime(0.0, 1e4, 1e4))
    assert estimated_cost(turned, copying) == pytest.approx(at_once + 2 * 4 * 256 * 256 / 1e4)
    assert estimated_cost(plain, copying) == at_once


def test_results_may_be_written_to_and_are_new_in_each_call() -> None:
    made = compiled(F.linear, Chooser())
    with torch.no_grad():
        first = made(X, W, B)
        first.zero_()
        second = made(X, W, B)
    agree(second, F.linear(X, W, B))
    assert first.count_nonzero() == 0 and first.data_ptr() != second.data_ptr()


def test_without_onednn_they_stay_calls_of_blas() -> None:
    chooser = Chooser()
    before = torch.backends.mkldnn.set_flags(False)
    try:
        with torch.no_grad():
            agree(compiled(F.linear, chooser)(X, W, B), F.linear(X, W, B))
    finally:
        torch.backends.mkldnn.set_flags(*before)
    assert "onednn" not in chooser.forms
