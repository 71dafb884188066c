"""Tensors made by legacy constructors, parameters made while running, scripted functions, small builtins."""

from __future__ import annotations

import re
import typing

import numpy
import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import assert_same, check


def test_legacy_constructors_of_numbers_sizes_and_tensors():
    def f(x):
        sizes = torch.Tensor(2).fill_(1.0), torch.LongTensor(2, 3).zero_(), torch.Tensor(x.shape).zero_()
        return torch.Tensor([[1, 2], [3, 4.5]]) + x, torch.LongTensor([1, 2]), torch.Tensor(x) * 2, sizes

    check(f, torch.ones(2, 2, requires_grad=True))


def test_new_makes_tensors_of_the_same_type():
    check(lambda x: (x.new([1, 2]), x.new(2, 3).zero_(), x.new(x.shape).zero_()), torch.ones(2, dtype=torch.float64))


def test_type_of_a_tensor_class():
    check(
        lambda x: (x.type(torch.LongTensor), x.type(torch.DoubleTensor) + 1, x.type(torch.FloatTensor)), torch.ones(2)
    )


def test_variable_drops_history():
    def f(x):
        return torch.autograd.Variable(x * 2), torch.autograd.Variable(x, requires_grad=True) * 2

    check(f, torch.ones(2, requires_grad=True))


def test_a_parameter_made_while_running_is_a_leaf_of_the_graph():
    def f(x):
        weight = torch.nn.Parameter(x * 2)
        fixed = torch.nn.Parameter(x, requires_grad=False)
        return weight * 3, fixed * 3, isinstance(weight, torch.nn.Parameter), weight.is_leaf

    check(f, torch.ones(2, requires_grad=True))


@torch.jit.script
def scripted(x: torch.Tensor, n: int):
    return x * n + 1


def test_a_scripted_function_is_followed():
    check(lambda x: scripted(x, 3) * 2, torch.ones(2))


def test_numpy_scalars_decide_the_type_of_a_tensor():
    values = [[numpy.float64(0.5), 0], [1, 2]]
    check(lambda x: (torch.tensor(values), torch.as_tensor([numpy.float64(1)]) * x), torch.ones(1), breaks=None)


def test_join_of_an_iterator():
    check(lambda x: x * len(", ".join(str(n) for n in range(3))), torch.ones(1))


_PATTERN = re.compile("a+")


def test_regular_expressions_of_constants():
    def f(x):
        match = re.match(r"(\d+)\.(\d+)", "12.3")
        return x * int(match.group(1)), x * _PATTERN.search("baa").end(), torch.__version__ < "1.5"

    check(f, torch.ones(1))


class _Callable:
    def __call__(self):
        return 1


def test_callable_asks_the_class_and_not_its_metaclass():
    one = _Callable()
    check(
        lambda x: (callable(()), callable([]), callable(3), callable(x), callable(one), callable(int), x), torch.ones(1)
    )


def test_calling_what_is_not_callable_raises_as_eager_does():
    def f(x):
        try:
            nothing = ()
            return nothing()
        except TypeError:
            return x + 1

    check(f, torch.ones(1))


def test_a_bound_method_of_a_tensor_survives_a_break():
    def f(x):
        return x.mul((print(end=""), x.sum())[1])

    observed = check(f, torch.ones(2), breaks=1)
    assert_same(observed(torch.ones(2)), torch.ones(2) * 2)


def test_whether_processes_work_together_is_a_guard(tmp_path):
    def f(x):
        return x * 2 if torch.distributed.is_available() and torch.distributed.is_initialized() else x + 1

    observed = check(f, torch.ones(2), graphs=1)
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        assert_same(observed(torch.ones(2)), torch.ones(2) * 2)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert_same(observed(torch.ones(2)), torch.ones(2) + 1)


@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_python_s_types_are_dtypes(kind):
    def program(x):
        return torch.ones(3, dtype=kind), x.to(kind), x.new_zeros(2, dtype=kind)

    check(program, torch.ones(2), graphs=1)


class Pair(typing.NamedTuple):
    value: torch.Tensor
    scale: object


class Scaled(Pair):
    """A named tuple whose own ``__new__`` takes other arguments than ``tuple``'s."""

    def __new__(cls, value, scale=None):
        return super().__new__(cls, value, torch.tensor(2.0) if scale is None else scale)

    def doubled(self):
        return self._replace(value=self.value * 2)


class Words(list):
    def __new__(cls, word):
        made = super().__new__(cls)
        made.word = word
        return made

    def __init__(self, word):
        super().__init__([word])


def test_instances_are_made_again_without_the_program_s_own_new():
    def program(x):
        scaled, words = Scaled(x + 1), Words("a")
        turret.graph_break()
        scaled = scaled.doubled()
        turret.graph_break()
        return scaled, words, words.word

    check(program, torch.ones(2), breaks=None)


def test_sizes_as_a_tensor():
    check(lambda x: torch._shape_as_tensor(x) * 2, torch.ones(2, 3), graphs=1)


def test_a_removed_attribute_of_tensors_is_false_and_warns():
    compiled = turret.compile(lambda x: x + 1 + x.volatile, fullgraph=True, options={"cache": False})
    with pytest.warns(UserWarning, match="volatile was removed"):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.bool])
@pytest.mark.parametrize(
    "make",
    [
        lambda one: torch.tensor([one, one * 2]),
        lambda one: torch.tensor([1, one, 3.5]),
        lambda one: torch.tensor([[one.reshape(1, 1), 1], [True, one]]),
        lambda one: torch.as_tensor([one, False]),
        lambda one: torch.tensor([one], dtype=torch.float64),
        lambda one: torch.zeros(2).new_tensor([one[None], 2]),
        lambda one: torch.Tensor([1, one]),
        lambda one: torch.tensor([one, 1j]),
    ],
    ids=["tensors", "numbers", "nested", "as_tensor", "dtype", "new_tensor", "legacy", "complex"],
)
def test_tensors_of_one_element_are_numbers_of_a_new_tensor(make, dtype):
    one = torch.tensor(1 if dtype is torch.bool else 3, dtype=dtype)
    compiled = turret.compile(make, options={"cache": False})
    for number in (one, one - 1 if dtype is not torch.bool else ~one):
        got, expected = compiled(number), make(number)
        assert got.dtype is expected.dtype and torch.equal(got, expected)


def test_a_tensor_made_of_tensors_has_none_of_their_history():
    def program(x):
        return torch.tensor([x.sum(), 2.0]) * x

    x = torch.ones(2, requires_grad=True)
    program(x).sum().backward()
    expected, x.grad = x.grad, None
    turret.compile(program, fullgraph=True, options={"cache": False})(x).sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize(
    "index", [lambda m: m, lambda m: (m, None), lambda m: (slice(None), m[0]), lambda m: m.numpy()]
)
def test_masks_of_bytes_are_read_by_as_masks_of_bools_are(index):
    def program(x):
        return x[index((x > 0).byte())]

    x = torch.tensor([[1.0, -1.0], [-2.0, 3.0]])
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    for given in (x, -x, x - 9):
        assert torch.equal(compiled(given), program(given))


def test_a_number_is_not_written_by_a_mask_of_bytes():
    def program(x):
        x[(x > 0).byte()] = 7
        return x

    for function in (program, turret.compile(program, options={"cache": False})):
        with pytest.raises(RuntimeError, match="only supports boolean masks"):
            function(torch.ones(2))
