"""What a graph capture cannot record, by op and arguments."""

from __future__ import annotations

import pytest
import torch

from turret.graph.obstacles import Obstacle, is_named, short_name, why_not_recorded
from turret.graph.ops.control_flow import CONTROL_FLOW

aten = torch.ops.aten


@pytest.mark.parametrize(
    "op",
    [aten.mm.default, aten.index.Tensor, aten.index_put.default, aten.scatter_add.default, aten.sort.default,
     aten.rand.default, aten.convolution.default, aten._scaled_dot_product_flash_attention.default],
    ids=str,
)  # fmt: skip
def test_most_calls_are_recorded(op):
    assert why_not_recorded(op, ()) == ""


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (aten._local_scalar_dense.default, "waits"),
        (aten.nonzero.default, "size depends on data"),
        (aten._unique2.default, "size depends on data"),
        (aten.repeat_interleave.Tensor, "size depends on data"),
        (aten.multinomial.default, "waits"),
        (aten.linalg_eig.default, "waits"),
        (aten.equal.default, "waits"),
    ],
    ids=str,
)
def test_calls_that_wait_for_the_device_are_not(op, why):
    assert why in why_not_recorded(op, ())


def test_histograms_wait_where_they_look_for_their_bounds():
    for arguments in ((), ("x",), ("x", 8), ("x", 8, 3, 3), ("x", 8, 0.0, 0)):
        assert "waits" in why_not_recorded(aten.histc.default, arguments)
    assert why_not_recorded(aten.histc.default, ("x", 8, 0, 7)) == ""


def test_masks_are_counted_on_the_host():
    for op in (aten.index.Tensor, aten.index_put.default):
        assert "mask" in why_not_recorded(op, (), [torch.bool])
        assert why_not_recorded(op, (), [torch.int64]) == ""


def test_solvers_wait_where_they_check_errors():
    op = aten.linalg_cholesky_ex.default
    assert why_not_recorded(op, ("A",)) == why_not_recorded(op, ("A", False, False)) == ""
    for arguments in (("A", False, True),):
        assert "check_errors" in why_not_recorded(op, arguments)


def test_collectives_and_random_states_are_not_recorded():
    reduced = torch.ops._c10d_functional.all_reduce.default
    assert "cudagraph_collectives" in why_not_recorded(reduced, ())
    assert not why_not_recorded(reduced, (), collectives=True)

    class State:
        _name = "run_and_save_rng_state"

    assert "state of a random number generator" in why_not_recorded(State(), ())
    assert "decides on the host" in why_not_recorded(CONTROL_FLOW["higher_order::cond.graph"], ())


@pytest.mark.parametrize("op", [aten.scatter_add.default, aten.index_put.default, aten.index_add.default], ids=str)
def test_deterministic_scatters_are_not_recorded(op):
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in why_not_recorded(op, ())
        assert why_not_recorded(aten.mm.default, ()) == ""
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_obstacle_reads_as_a_sentence():
    assert str(Obstacle("aten::mm", "is slow", "f.py:3: x @ x")) == "aten::mm is slow, at f.py:3: x @ x"
    assert str(Obstacle("aten::mm", "is slow")) == "aten::mm is slow"
    assert short_name(aten.mm.default) == "aten::mm" and short_name(aten.add.Tensor) == "aten::add.Tensor"


def test_names_are_those_of_ops_and_of_overloads():
    assert is_named(["aten::add"], "aten::add.Tensor") and is_named(["aten::add.Tensor"], "aten::add.Tensor")
    assert not is_named(["aten::add.Scalar"], "aten::add.Tensor") and not is_named(["aten::ad"], "aten::add.Tensor")
    assert not is_named([""], "", "aten::mm") and not is_named([], "aten::mm")
