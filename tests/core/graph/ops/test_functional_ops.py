"""Pure ops of writing ops, and ops that a program takes back and registers anew."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.graph.externs import op_name, resolve_op
from turret.graph.ops.functional_ops import functional_op

aten = torch.ops.aten


def test_the_form_says_what_is_copied_and_returned():
    x, y = torch.ones(3), torch.ones(3)
    pure = functional_op(aten._foreach_add_.List, "w0w1rr")
    first, second = pure([x, y], [x * 2, x])
    assert torch.equal(x, torch.ones(3)) and torch.equal(first, x * 3)
    assert pure._schema.arguments[0].alias_info is None and len(pure._schema.returns) == 2
    assert second is not y and resolve_op(op_name(pure)) is pure


def test_one_number_twice_is_one_copy():
    x = torch.ones(3)
    assert torch.equal(functional_op(aten._foreach_mul_.Scalar, "w0w0")([x, x], 3.0), x * 9)


@pytest.mark.parametrize("writes", [False, True])
def test_an_op_registered_under_the_name_of_one_taken_back_is_the_one_that_runs(writes):
    def compile_and_run(factor, extra):
        arguments = "Tensor(a!) x" if writes else "Tensor x"
        with torch.library._scoped_library("turret_taken_back", "FRAGMENT") as library:
            library.define(f"op({arguments}{', int more=1' if extra else ''}) -> Tensor")

            def op(x, more=1):
                return (x.add_(factor) if writes else x) * factor

            library.impl("op", op, "CompositeExplicitAutograd")

            def function(x):
                y = x + 1
                return torch.ops.turret_taken_back.op(y), y * 2

            compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
            torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))

    for factor, extra in [(2, False), (3, False), (3, True), (2, False), (5, True)]:
        compile_and_run(factor, extra)


def test_the_pure_op_of_one_that_draws_numbers_is_said_to_draw_them():
    tags = functional_op(aten.rrelu_with_noise.default, "rw0").tags
    assert torch.Tag.nondeterministic_seeded in tags
    assert torch.Tag.nondeterministic_seeded not in functional_op(aten._foreach_mul_.Scalar, "w0w0").tags
