"""What programs say of their functions and tensors: to Turret, and to torch's own compiler."""

from __future__ import annotations

import bisect
import cmath
import importlib
import math
from collections.abc import Callable

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, check
from turret.errors import CaptureError, MarkError, OptionError, RecompileError

DYNAMO = importlib.import_module("torch._dynamo")
X = torch.arange(1.0, 5.0)
CALLS = []


@turret.allow_in_graph
def allowed(x, many):
    CALLS.append(1)  # would not be followed: the list is from before
    return torch.where(x.sum() > 0, x * 3, x) + many[0]


@torch.compiler.allow_in_graph
def allowed_by_torch(x):
    return x.sigmoid() * 2


def test_an_allowed_function_is_one_call_of_the_graph():
    observed = check(lambda x: allowed(x, [x, x]) + 1, X, breaks=0, graphs=1)
    assert allowed in [n.target for n in observed.graphs[0].module.graph.nodes]


def test_torchs_mark_is_honoured():
    observed = check(lambda x: allowed_by_torch(x) + 1, X, breaks=0, graphs=1)
    assert allowed_by_torch in [n.target for n in observed.graphs[0].module.graph.nodes]


@pytest.mark.parametrize("mark", [turret.allow_in_graph, torch.compiler.allow_in_graph])
def test_an_allowed_autograd_function_is_one_call_of_the_graph(mark: Callable):
    @mark
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            turret.graph_break()  # would break the graph if it were followed
            ctx.rows = x.size(0)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.rows

    def gradient(function):
        x = torch.ones(3, 2, requires_grad=True)
        (function(x) + 1).sum().backward()
        return x.grad

    compiled = turret.compile(lambda x: Scaled.apply(x), fullgraph=True)
    assert torch.equal(gradient(compiled), gradient(Scaled.apply))
    observed = check(lambda x: Scaled.apply(x) + 1, torch.ones(3, 2, requires_grad=True), breaks=0, graphs=1)
    assert "Scaled" in observed.graphs[0].module.code


@pytest.mark.parametrize("asks", [torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling])
def test_a_function_that_computes_nothing_is_told_that_it_is_compiled(asks: Callable):
    told = []

    def program(x, n):
        told.append(asks())
        return "compiled" if asks() else "eager", n + 1

    compiled = turret.compile(program, fullgraph=True)
    for n in range(3):
        assert compiled(X, n) == ("compiled", n + 1)
    assert told == [True] * 3


def test_an_allowed_function_is_compiled_with_the_graph():
    options = {"capture": "turret", "on_error": "raise", "cache": False}
    fast = turret.compile(lambda x: allowed_by_torch(x) + 1, fullgraph=True, options=options)
    torch.testing.assert_close(fast(X), allowed_by_torch(X) + 1)


def test_a_substitute_is_captured_in_place_of_a_function():
    @turret.substitute_in_graph(math.fsum)
    def fsum(seq, /):
        total = 0.0
        for item in seq:
            total = total + item
        return total

    check(lambda x: x * math.fsum([x.shape[0], 2.0]), X, breaks=0, graphs=1)
    with pytest.raises(OptionError, match="substitute already"):
        turret.substitute_in_graph(math.fsum)(fsum)


def test_a_substitute_takes_the_same_parameters():
    with pytest.raises(OptionError, match="parameters"):
        turret.substitute_in_graph(check)(lambda x: x)
    turret.substitute_in_graph(cmath.exp, skip_signature_check=True)(lambda a, b, c: a)


def test_torchs_substitutes_are_honoured():
    @torch.compiler.substitute_in_graph(bisect.bisect_left, skip_signature_check=True)
    def count_smaller(items, item):
        return sum(1 for v in items if v < item)

    check(lambda x: x * bisect.bisect_left([1, 2, 3, 4], x.shape[0]), X, breaks=0, graphs=1)


@torch.compiler.assume_constant_result
def constant(n):
    CALLS.append(n)
    with open(__file__) as file:
        return len(file.readline()) * 0 + n


def test_a_constant_result_is_computed_once():
    CALLS.clear()
    observed = Observed(lambda x: x * constant(3), fullgraph=True)
    for _ in range(3):
        assert torch.equal(observed(X), X * 3)
    assert CALLS == [3]


@torch.compiler.assume_constant_result
def constant_tensor():
    return torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_a_constant_tensor():
    observed = Observed(lambda x: x * constant_tensor(), fullgraph=True)
    assert torch.equal(observed(X), X * X)


@turret.disable
def disabled(x):
    return x * 2


@torch.compiler.disable(reason="it talks")
def disabled_with_reason(x):
    return x * 3


def test_disabled_functions_run_as_python():
    observed = check(lambda x: disabled(x + 1) + disabled_with_reason(x) + 1, X, breaks=2)
    assert any("it talks" in b for b in observed.breaks)


def test_a_function_disabled_on_the_way():
    check(lambda x: turret.disable(lambda v: v + 1)(x) * 2, X, breaks=None)


def test_graph_break_is_on_record():
    def program(x):
        y = x + 1
        turret.graph_break("to look around")
        return y * 2

    observed = check(program, X, breaks=1, graphs=2)
    assert "to look around" in observed.breaks[0]
    with pytest.raises(CaptureError, match="look around"):
        Observed(program, fullgraph=True)(X)


def test_code_can_tell_that_it_is_captured():
    def program(x):
        seen = (turret.is_compiling(), torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())
        return x + 1, seen

    assert program(X)[1] == (False, False, False)
    assert Observed(program, fullgraph=True)(X)[1] == (True, True, True)


@pytest.mark.parametrize("mark", ["dynamic", "weak_dynamic", "unbacked", "strict_unbacked"])
def test_a_marked_dimension_is_dynamic_from_the_first_call(mark):
    observed = Observed(lambda x: x * x.shape[0])
    for rows in (4, 5, 6):
        x = torch.ones(rows, 3)
        setattr(x, f"_dynamo_{mark}_indices", {0})  # what mark_dynamic and its kin leave
        assert torch.equal(observed(x), torch.full((rows, 3), float(rows)))
    assert len(observed.graphs) == 1


def test_a_dimension_marked_static_stays_so():
    observed = Observed(lambda x: x * x.shape[0])
    for rows in (4, 5, 6):
        x = torch.ones(rows, 3)
        x._dynamo_static_indices = {0}
        assert torch.equal(observed(x), torch.full((rows, 3), float(rows)))
    assert len(observed.graphs) == 3


@torch.library.custom_op("turret_tests_marks::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_custom_op_is_one_call_of_the_graph():
    observed = check(lambda x: twice(x) + torch.ops.turret_tests_marks.twice(x), X, breaks=0, graphs=1)
    targets = [str(n.target) for n in observed.graphs[0].module.graph.nodes]
    assert any("twice" in t for t in targets)


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() + 1


def test_a_nested_region_is_part_of_the_graph():
    check(lambda x: region(region(x)) * 2, X, breaks=0, graphs=1)


class HoldsRegion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.compiler.nested_compile_region(torch.nn.Linear(4, 4))

    def forward(self, x):
        return self.part(self.part(x)) * 2


def test_a_module_that_torch_marked_as_a_region_is_part_of_the_graph_and_may_change():
    model = HoldsRegion()
    fast = turret.compile(model, fullgraph=True, options={"on_error": "raise"})
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), model(x))
    marked = model.part.__marked_compile_region_fn__
    marked.weight = torch.nn.Parameter(torch.ones(4, 4))
    torch.testing.assert_close(fast(x), model(x))
    fast(x).sum().backward()
    assert marked.weight.grad is not None
    model.part = torch.compiler.nested_compile_region(torch.nn.Linear(4, 4))
    torch.testing.assert_close(fast(x), model(x))


def marked(mark, size=3, **options):
    made = torch.ones(size, 3)
    mark(made, 0, **options)
    return made


BROKEN = {
    "a branch": (DYNAMO.mark_dynamic, {}, lambda x: x * 2 if x.shape[0] == 3 else x, "specialized it to be 3"),
    "a shape": (DYNAMO.mark_dynamic, {}, lambda x: x.reshape(3, 3) + 1, "specialized it to be 3"),
    "a range": (
        DYNAMO.mark_dynamic, {"min": 2, "max": 50}, lambda x: x * 2 if x.shape[0] < 20 else x, "not all sizes to 50",
    ),
    "unbacked": (
        DYNAMO.decorators.mark_unbacked, {}, lambda x: x * 2 if x.shape[0] > 4 else x + 1, "Could not guard on data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_promise_about_a_size_that_the_program_breaks_is_an_error(case):
    mark, options, program, reason = case
    with pytest.raises(MarkError, match=reason):
        turret.compile(program, backend="eager", options={"cache": False})(marked(mark, **options))


def test_a_promise_that_is_kept_holds_for_all_sizes():
    program = lambda x: x * 2 if x.shape[0] < 100 else x  # noqa: E731
    observed = Observed(program)
    for size in (3, 4, 5):
        observed(marked(DYNAMO.mark_dynamic, size, min=2, max=50))
    assert len(observed.graphs) == 1
    assert torch.equal(
        Observed(lambda x: x * 2 if x.shape[0] == 3 else x)(marked(DYNAMO.maybe_mark_dynamic)),
        torch.full((3, 3), 2.0),
    )


def captures(program, calls, **settings):
    observed = Observed(program)
    with DYNAMO.config.patch(**settings):
        for args in calls:
            torch.testing.assert_close(observed(*args), program(*args))
    return len(observed.graphs)


SIZES = [(torch.ones(n, 3),) for n in (3, 4, 5)]
INTS, FLOATS = [(X, n) for n in (3, 4, 5)], [(X, n / 8) for n in (3, 4, 5)]


def times(x, n=2):
    return x * n


@pytest.mark.parametrize(
    ("calls", "settings", "usual", "expected"),
    [
        (SIZES, {"assume_static_by_default": False}, 2, 1),
        (SIZES, {"automatic_dynamic_shapes": False}, 2, 3),
        (INTS, {"specialize_int": True}, 2, 3),
        (FLOATS, {"specialize_float": True}, 2, 3),
        (INTS, {"specialize_int": True, "recompile_limit": 2}, 2, 2),
    ],
)
def test_settings_of_torch_dynamo_mean_the_same_here(calls, settings, usual, expected):
    assert captures(times, calls) == usual
    assert captures(times, calls, **settings) == expected


def test_recompiles_are_errors_where_torchs_setting_says_so():
    compiled = turret.compile(times, backend="eager", options={"cache": False})
    with DYNAMO.config.patch(error_on_recompile=True):
        compiled(X)
        with pytest.raises(RecompileError, match="error_on_recompile"):
            compiled(X[1:])


@pytest.mark.parametrize(("names", "calls"), [("L['x']", SIZES), ("y, x", SIZES), (r"L\['n.*", INTS)])
def test_sources_that_are_named_are_dynamic_from_the_first_capture_on(names, calls):
    with torch.compiler.config.patch(dynamic_sources=names):
        assert captures(times, calls) == 1


def test_mark_static_in_compiled_code_fixes_sizes():
    def program(x):
        DYNAMO.mark_static(x, 0)
        return x * 2

    observed = Observed(program, fullgraph=True, dynamic=True)
    for rows in SIZES:
        observed(*rows)
    assert len(observed.graphs) == 3
