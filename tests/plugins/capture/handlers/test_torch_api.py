"""Functions of torch that are not recorded as they were called."""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check

CHOICES = {
    "function": lambda m, x: torch.where(m, x, -x),
    "number": lambda m, x: torch.where(m, x, 0.5),
    "names": lambda m, x: torch.where(condition=m, input=x, other=-x),
    "method": lambda m, x: x.where(m, -x),
    "method, names": lambda m, x: x.where(condition=m, other=2.0),
    "places": lambda m, x: torch.where(m),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
@pytest.mark.parametrize("name", CHOICES)
def test_elements_are_chosen_by_masks_of_bytes_too(name, dtype):
    observed = Observed(CHOICES[name], fullgraph=True)
    for values in ([0, 1, 2], [1, 0, 0]):
        mask, x = torch.tensor(values).to(dtype), torch.arange(3.0)
        torch.testing.assert_close(observed(mask, x), CHOICES[name](mask, x))


def test_requires_grad_that_is_set_to_what_it_is_changes_nothing():
    def program(x, w):
        x.requires_grad = False
        w.requires_grad = True
        return (x * w).sum()

    observed, w = Observed(program, fullgraph=True), torch.ones(3, requires_grad=True)
    x = torch.arange(3.0)
    observed(x, w).backward()
    assert torch.equal(w.grad, x) and not x.requires_grad and not observed.fallbacks


@pytest.mark.parametrize("sizes", [(2, 3), (4, 5)])
def test_sizes_that_a_tensor_holds_are_those_of_a_reshape_and_of_a_split(sizes):
    def program(x):
        shape = torch.onnx.operators.shape_as_tensor(x)
        flat = torch.onnx.operators.reshape_from_tensor_shape(
            x, torch.cat([torch.tensor([-1]), shape[1:].prod()[None]])
        )
        return flat, *torch.tensor_split(x, torch.tensor([1])), *x.tensor_split(torch.tensor(2))

    observed = Observed(program, fullgraph=True)
    for x in (torch.randn(sizes), torch.randn(sizes)):
        found, expected = observed(x), program(x)
        torch.testing.assert_close(found, expected)
        assert all(y._is_view() for y in found)


def test_requires_grad_that_a_method_sets_to_what_it_is_changes_nothing():
    def program(x, w):
        x.requires_grad_(requires_grad=False)
        return (x * w.requires_grad_()).sum()

    observed, w = Observed(program, fullgraph=True), torch.ones(3, requires_grad=True)
    x = torch.arange(3.0)
    observed(x, w).backward()
    assert torch.equal(w.grad, x) and not x.requires_grad and not observed.fallbacks


def test_limits_of_a_type_that_has_none_raise_in_the_program():
    def program(x):
        try:
            return x, torch.finfo(torch.int64)
        except TypeError as error:
            return x + torch.iinfo(type=torch.int8).max, str(error)

    check(program, torch.arange(3.0), breaks=0, graphs=1)


def test_losses_that_call_the_program_or_branch_on_data_are_followed():
    def program(x, y):
        close = torch.nn.functional.gaussian_nll_loss(x, y, y.abs() + 1)
        far = torch.nn.functional.triplet_margin_with_distance_loss(
            x, y, -x, distance_function=lambda a, b: (a - b).abs().sum(-1)
        )
        return far, close

    observed = Observed(program, fullgraph=True)
    for seed in range(2):
        x, y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(observed(x, y), program(x, y))
    assert len(observed.graphs) == 1


def test_sizes_are_trees_of_numbers():
    def program(x):
        leaves, structure = pytree.tree_flatten(x.shape)
        return x + leaves[0], pytree.tree_unflatten(leaves, structure), pytree.tree_map(lambda n: n + 1, x.shape)

    check(program, torch.ones(2, 3), breaks=0, graphs=1)


def test_schemes_of_quantization_are_constants():
    scheme = torch.per_tensor_symmetric

    def program(x):
        return x + 1 if scheme == torch.per_tensor_symmetric and scheme in (torch.per_tensor_symmetric,) else x

    check(program, torch.ones(2), breaks=0, graphs=1)


def test_annotations_of_new_functions_may_be_unions_of_callables():
    def program(x):
        def scaled(x, by: Callable[[int], int] | None = None):
            return x * 2

        return scaled(x), len(scaled.__annotations__)

    namespace = {"Callable": Callable}
    exec(textwrap.dedent(inspect.getsource(program)), namespace)  # without the future's annotations
    check(namespace["program"], torch.ones(2), breaks=0, graphs=1)


def test_an_observer_by_rows_makes_room_for_its_first_values():
    def observer():
        return torch.ao.quantization.default_fused_per_channel_wt_fake_quant()

    mine, theirs = observer(), observer()
    compiled = turret.compile(mine, options={"on_error": "raise"})
    for step in range(1, 4):
        x = torch.arange(12.0).view(3, 4) / step
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(dict(mine.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (5, 4)), (nn.BatchNorm2d, (2, 4, 3, 3))])
def test_a_cumulative_average_of_batches_is_captured_for_the_first_number_and_for_all_others(kind, shape):
    mine = kind(4, momentum=None)
    theirs = copy.deepcopy(mine)
    observed = Observed(mine)
    for number in range(1, 6):
        x = torch.randn(*shape) * number
        mine_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = observed(mine_in), theirs(theirs_in)
        assert_same(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        assert_same(mine_in.grad, theirs_in.grad)
        assert_same(mine.state_dict(), theirs.state_dict())
    assert len(observed.graphs) == 3  # the count, and what is behind its reading for 1 and for the others


@pytest.mark.parametrize("training", [True, False])
def test_a_momentum_that_changes_is_no_constant_of_a_batch_norm(training):
    def f(x, mean, variance, momentum):
        return F.batch_norm(x, mean, variance, training=training, momentum=momentum)

    observed = Observed(f)
    for momentum in (0.1, 0.2, 0.3, 0.0, 1.0, 0.4):
        x, mean, variance = torch.randn(4, 3), torch.randn(3), torch.rand(3)
        others = mean.clone(), variance.clone()
        assert_same(observed(x, mean, variance, momentum), f(x, *others, momentum))
        assert_same((mean, variance), others)
    assert len(observed.graphs) <= 3
