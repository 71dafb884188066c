"""An ``if`` that data decide is a ``cond`` of a whole graph: drawn programs give what eager gives, or are refused."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, note, settings

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.errors import CaptureError, StageError

DATA = ([1.0, -2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, 0.0, 0.0], [4.0, 5.0, -1.0], [float("nan"), 1.0, -1.0])


def memory(values: tuple) -> list[int]:
    """For each tensor, the first one that lies in the same memory."""
    places = [v.untyped_storage().data_ptr() for v in values]
    return [places.index(p) for p in places]


class Box:
    """An object from before the call, which programs change."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.held, self.listed, self.named = torch.ones(3), [1, 2.0], {"a": 3}


BOX = Box()


def leaves_of(value: Any) -> list[Any]:
    """What nested containers hold, each of them given by its type ahead of that."""
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    return (
        [type(value), *(leaf for v in value for leaf in leaves_of(v))] if isinstance(value, (list, tuple)) else [value]
    )


def outcome(function: Callable, data: list[float]) -> Any:
    """All that a caller sees of a call."""
    BOX.reset()
    x = torch.tensor(data)
    w = torch.tensor([1.0, 2.0, -1.0], requires_grad=True)
    u = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = function(x, w, u)
    except ERRORS as error:
        return type(error)
    results = leaves_of((found, [BOX.held, BOX.listed, BOX.named]))
    results.append([str(w.message) for w in given if w.category is UserWarning])
    tensors = tuple(v for v in results if isinstance(v, torch.Tensor))
    seen = [v.requires_grad if isinstance(v, torch.Tensor) else type(v) for v in results]
    objects = (x, w, u, *tensors)
    shared = memory(objects), [next(n for n, v in enumerate(objects) if v is o) for o in objects]
    loss = [v.sum() for v in tensors if v.requires_grad]
    raises = False
    if loss:
        try:
            torch.stack(loss).sum().backward()
        except RuntimeError:  # of a write to what it needs
            raises = True
    return [x, *results], [w.grad, u.grad], seen, shared, raises


ERRORS = (ZeroDivisionError, ValueError, OverflowError, UnboundLocalError, RuntimeError, IndexError, TypeError,
          AttributeError)  # fmt: skip


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, type):
        assert found in (expected, RuntimeError), (
            found,
            expected,
        )  # of the graph's check, where the call has changed its inputs
        return
    assert not isinstance(found, type), found
    assert found[2:4] == expected[2:4]
    assert not found[4] or expected[4]
    gradients = [] if expected[4] else zip(found[1], expected[1], strict=True)
    for mine, theirs in [*zip(found[0], expected[0], strict=True), *gradients]:
        assert type(mine) is type(theirs), (mine, theirs)
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, equal_nan=True, check_stride=True)
        else:
            assert mine == theirs or mine != mine, (mine, theirs)


def check(function: Callable, data: Any = DATA, backend: str = "aot_eager") -> None:
    """Equal to eager for all data, both sides of all branches among them."""
    compiled = turret.compile(function, fullgraph=True, backend=backend, dynamic=False, options={"on_error": "raise"})
    for numbers in data:
        assert_same(outcome(compiled, numbers), outcome(function, numbers))


def program(text: str) -> Callable:
    scope: dict[str, Any] = {"torch": torch, "warnings": warnings, "box": BOX}
    exec(compile(textwrap.dedent(text), "<program>", "exec"), scope)
    return scope["f"]


CONDITIONS = ["x.sum() > 0", "(y > 1).any()", "n > 1", "s > 0.5", "not (x == 0).all()", "x.max() > 2 and y.min() < 0",
              "n", "y[0] > 0 or s < 0", "w.detach()[2] < x[0]", "(x > 0).sum().item() == 2"]  # fmt: skip
PLAIN = ["y = y * 2", "y = x + w", "y = w * u", "y = x", "y = y.sin() + 1", "y = x[1:]", "n = n + 1", "n = 3", "s = 2.5",
         "s = y.detach().sum().item()", "n = int((y > 0).sum())", "z = y + u", "z = (x, y)", "y += 1", "y[0] = 2.0", "x += 1",
         "x[x > 0] = 1.5", "y = y.clone()", "s = s / n", "l = [y, n]", "y = l[0] + l[1]", "z = x.view(3)", "y = z + 1",
         "l.append(y)", "y = y * n", "y = y * s", "y = u.exp()", "w2 = w * 1", "y = w2 + x", "y = torch.where(x > 0, y, x)",
         "y.mul_(w)", "pass", "y = y.detach()", "n = True", "t = (n, s)", "n, s = t"]  # fmt: skip
APART = ["z = None", "n = None", "s = 0", "y = y.sum()", "z = y", "l[0] = y", "l[1] = n", "l[1] = None", "s = y.sum()",
         "l = [None, z]", "y = y + s", "y = z if z is not None else y", "y = l[0] * 2", "box.held = y", "box.held = s",
         "box.listed[0] = s", "box.named['a'] = z", "y = y * box.listed[0]", "n = box.named['a']", "s = box.listed[1]",
         "warnings.warn('one')", "warnings.warn('two')", "l += [s]", "s = len(l)", "t = (z, y)", "z, y = t",
         "n = s if isinstance(s, int) else 2", "y = (y, s)[0]", "z = [y]", "z = y if n is None else u", "z = u.sum()",
         "y = x if y is z else y * 1", "s = s * 2", "s += y", "y = x.double() * w"]  # fmt: skip
"""Of what the sides leave, no one value is made: kinds, lengths and objects from before differ."""


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def conditional(parts: tuple[str, list[str], list[str]]) -> list[str]:
    condition, yes, no = parts
    return [f"if {condition}:", *indented(yes), *(["else:", *indented(no)] if no else [])]


def flat(blocks: list[list[str]]) -> list[str]:
    return [line for block in blocks for line in block]


STATEMENT = st.sampled_from([*PLAIN, *APART]).map(lambda line: [line])
RETURNS = ["return y", "return y, n", "return x * 2, y", "return y + w, s", "return (y * u).sum()", "return z", "return l",
           "return y, z, s", "return t", "return x", "return s, box.held"]  # fmt: skip
RETURN = st.sampled_from(RETURNS).map(lambda line: [line])


def blocks(depth: int) -> st.SearchStrategy[list[str]]:
    if depth == 0:
        return st.lists(STATEMENT, min_size=1, max_size=2).map(flat)
    inner = blocks(depth - 1)
    ifs = st.tuples(st.sampled_from(CONDITIONS), inner, st.one_of(inner, st.just([]))).map(conditional)
    early = st.tuples(st.sampled_from(CONDITIONS), st.tuples(inner, RETURN).map(list).map(flat), st.just([])).map(
        conditional
    )
    ternary = st.sampled_from(CONDITIONS).flatmap(
        lambda c: st.sampled_from([f"y = y * 2 if {c} else y - w", f"n = 1 if {c} else 2", f"s = s if {c} else 4.0"])
    )
    loop = inner.map(lambda lines: ["for i in range(2):", *indented(lines)])
    with_mode = inner.map(lambda lines: ["with torch.no_grad():", *indented(lines)])
    choice = st.one_of(ifs, ifs, ifs, STATEMENT, STATEMENT, early, ternary.map(lambda t: [t]), loop, with_mode)
    return st.lists(choice, min_size=1, max_size=3).map(flat)


PROGRAMS = st.tuples(blocks(2), RETURN).map(list).map(flat)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=30, deadline=None)
@given(body=PROGRAMS)
def test_a_program_gives_what_eager_gives_or_is_refused(body):
    start = [
        "y = x * w",
        "z = x + 1",
        "w2 = u * 2",
        "n = int((x > 0).sum())",
        "s = x.sum().item()",
        "l = [x, 1]",
        "t = (1, 2.0)",
    ]
    text = "\n".join(["def f(x, w, u):", *indented(start), *indented(body)])
    note(text)
    try:
        check(program(text))
    except (CaptureError, StageError):
        return


def graphs_of(function: Callable, *args: Any) -> list[str]:
    """The graphs that a call is captured as."""
    observed = Observed(function, fullgraph=True)
    observed(*args)
    return [str(graph) for graph in observed.graphs]


def test_a_whole_program_has_a_cond_and_others_break_the_graph():
    def f(x, w, u):
        if x.sum() > 0:
            return x * 2
        return x - 1

    (graph,) = graphs_of(f, *map(torch.tensor, DATA[:3]))
    assert "cond" in graph
    observed = Observed(f)
    observed(*map(torch.tensor, DATA[:3]))
    assert len(observed.graphs) == 2 and "cond" not in "".join(map(str, observed.graphs))


def test_a_loop_of_branches_has_one_cond_a_round():
    def f(x, w, u):
        weights, valid = torch.zeros_like(x), 0
        for number in range(6):
            inside = (x > number - 3) & (x <= number - 2)
            n = inside.sum().item()
            if n > 0:
                weights[inside] = 10 / n
                valid += 1
        if valid > 0:
            weights = weights / valid
        return weights

    check(f)
    (graph,) = graphs_of(f, *map(torch.tensor, DATA[:3]))
    assert graph.count("higher_order.cond") == 7


def drawn(x, w, u):
    if x.sum() > 0:
        y = x + torch.rand(3)
    else:
        y = torch.rand(2, 3).sum(0) * x
    return y + torch.rand(3)


def of_a_part(x, w, u):
    part = x[x > 0]
    return part * 2 if part.sum() > 2 else part + 1


def initialized(x, w, u):
    with torch.no_grad():
        if x.sum() > 0:
            w.copy_(x)
            u.data.mul_(2)
    return (w * u).sum() + x


def written_past_autograd(x, w, u):
    if x.sum() > 0:
        w.data.copy_(x)
    return w * u


def written_parameter(x, w, u):
    if x.sum() > 0:
        w.mul_(2)
    return w * u


def in_a_closure(x, w, u):
    total = x

    def add(v):
        nonlocal total
        if v.sum() > 0:
            total = total + v
        else:
            total = total - v

    add(x * w.detach())
    add(x - 3)
    return total * u


def infinite_slopes_of_the_other_side(x, w, u):
    root = (w * 0).sqrt()
    return (root * u).sum() if x.sum() > 0 else (w * u).sum()


def of_one_side_alone(x, w, u):
    return x * w if x.sum() > 0 else x * u


def checked_within(x, w, u):
    if x.sum() > 0:
        if (x < -1).any():
            raise ValueError("too small")
        x = x * 2
    return x + 1


def raises_on_one_side(x, w, u):
    if x.sum() > 0:
        return x * 2
    return x @ torch.ones(4)


def divided(x, w, u):
    n = (x > 2).sum().item()
    return x / n if x.sum() > -5 else x * n


def kept_or_replaced(x, w, u):
    y = x + 1
    if x.sum() > 0:
        y = y * 2
    return y.sin() + w


def with_tuples(x, w, u):
    found = (x, {"a": [x * 2, 1]}, 2.0) if x.sum() > 0 else (-x, {"a": [x * 3, 2]}, 3.0)
    return found[1]["a"][0] * found[2] + found[1]["a"][1]


def chained(x, w, u):
    flag = (bool(x.sum() > 0) and not x.min() < -3) or bool(x.max() == 0)
    if flag or (x == 4).any():
        return x * 2, flag
    return x - 1, flag


def resized(x, w, u):
    y = x.clone()
    if x.sum() > 0:
        y.unsqueeze_(0)
    return y


GIVEN = [of_a_part, initialized, written_past_autograd, in_a_closure, checked_within, divided, kept_or_replaced,
         with_tuples, chained, raises_on_one_side]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", GIVEN, ids=lambda f: f.__name__)
def test_a_branch_on_data_is_one_graph_with_the_values_and_gradients_of_eager(function, backend):
    check(function, backend=backend)


def test_a_side_draws_random_numbers_where_the_program_does():
    compiled = turret.compile(drawn, fullgraph=True, backend="eager", dynamic=False)
    for numbers in DATA:
        results = []
        for function in (compiled, drawn):
            torch.manual_seed(0)
            results += [outcome(function, numbers)]
        assert_same(*results)


def aliased(x, w, u):
    y = x
    if x.sum() > 0:
        y = x * 2
    return y


def changed_afterwards(x, w, u):
    y = x + 1
    z = y
    if x.sum() > 0:
        z = y * 2
    z += 1
    return y + z


def asked_for_identity(x, w, u):
    y = x + 1
    z = y
    if x.sum() > 0:
        z = y * 2
    return y + 1 if z is y else z


def view_of_what_is_written(x, w, u):
    y = x.clone()
    row = y[1:]
    if x.sum() > 0:
        y += 1
    return row * 2


def appended(x, w, u):
    found = []
    if x.sum() > 0:
        found.append(x * 2)
    return len(found), x + 1


def looped(x, w, u):
    while x.sum() < 5:
        x = x + 1
    return x


def left_early(x, w, u):
    for n in range(3):
        if x[n] > 0:
            break
        x = x + 1
    return x * 2


def or_another_leaf(x, w, u):
    y = w * 2 if x.sum() > 0 else u * 3
    return y + x


def read_where_unset(x, w, u):
    if x.sum() > 0:
        late = x * 2
    return late + 1


def left_in_a_list(x, w, u):
    found = []
    for n in range(2):
        if x[n] > 0:
            found.append(x * n)
        else:
            found.append(None)
    given = [w if v is None else v * w for v in found]
    return given, found


def a_number_or_a_tensor(x, w, u):
    loss = 0 if x.sum() > 0 else (x * w).sum()
    return (w * 2).sum() + loss


def none_or_a_tensor(x, w, u):
    found = None
    if x.sum() > 0:
        found = (x * w).sum()
    return found


def of_other_ranks(x, w, u):
    y = x.sum() if x.sum() > 0 else x + 1
    return y * w


def of_other_types(x, w, u):
    n = (x > 0).sum().item()
    return (w * u).sum() / (1.0 if n == 0 else n)


def held_by_an_object(x, w, u):
    if x.sum() > 0:
        BOX.held = x * w
        BOX.listed[0] = x.sum().item()
    else:
        BOX.held = 0
        BOX.named["a"] = None
    return BOX.held


def warned(x, w, u):
    if x.sum() > 0:
        warnings.warn("positive")
        if x.max() > 3:
            warnings.warn("large")
        x = x * 2
    else:
        warnings.warn("negative")
    return x * w


def raises_for_one_object(x, w, u):
    found = None
    if x.sum() > 0:
        found = x * w
    return found.sum()


def counts_by_data(x, w, u):
    count = 2 if x.sum() > 0 else 1
    return [w * n for n in range(count)], [v * 2 for v in ([x, x + 1] if x.max() > 2 else [x])]


def a_method_of_either(x, w, u):
    y = x if x.sum() > 0 else x[:2] + 1
    return y.contiguous().sum() * w, y.t() * 2


APART_BY_A_FLAG = [aliased, changed_afterwards, asked_for_identity, left_in_a_list, a_number_or_a_tensor,
                   none_or_a_tensor, of_other_ranks, of_other_types, held_by_an_object, warned, raises_for_one_object,
                   counts_by_data, a_method_of_either]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", APART_BY_A_FLAG, ids=lambda f: f.__name__)
def test_sides_may_leave_objects_that_are_no_one_value(function, backend):
    if function is counts_by_data and sys.version_info >= (3, 12):
        pytest.skip("a comprehension is a loop of the frame's own, whose rounds data would decide")
    if function is warned and backend == "eager" and torch.__version__ < "2.13":
        pytest.skip("torch's own cond takes no gradient of a side that another cond ends")
    check(function, backend=backend)


def test_a_copy_that_a_side_writes_to_is_never_taken_for_a_later_tensor():
    for _ in range(20):  # in the place of the copy's fake, the next tensor's may lie
        check(changed_afterwards, DATA[1:3], backend="eager")


REFUSED = {
    view_of_what_is_written: "shares its memory", appended: "changes a list", looped: "a branch on a tensor's value",
    left_early: "a branch on a tensor's value", read_where_unset: "one side alone sets it", resized: "changes",
    of_one_side_alone: "gradients to different tensors", or_another_leaf: "gradients to different tensors",
}  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_a_cond_cannot_stand_for_is_refused_with_what_is_in_the_way(function):
    compiled = turret.compile(function, fullgraph=True)
    with pytest.raises(CaptureError, match=REFUSED[function]):
        outcome(compiled, DATA[0])


def test_a_side_that_writes_to_a_leaf_raises_autograds_error_where_data_take_it():
    compiled = turret.compile(written_parameter, fullgraph=True)
    for data in ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]):
        expected = outcome(written_parameter, data)
        assert (expected is RuntimeError) is (data[0] > 0)
        assert_same(outcome(compiled, data), expected)


def test_a_side_has_no_share_in_gradients_where_the_other_one_runs():
    check(infinite_slopes_of_the_other_side)


def test_a_method_of_a_module_branches_on_its_buffers():
    class Normalized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                self.scale.data.copy_(x.abs() + 1)
                self.ready.fill_(True)
            return x * self.scale

    plain, module = Normalized(), Normalized()
    compiled = turret.compile(module, fullgraph=True)
    for numbers in DATA[:3]:
        found, expected = compiled(torch.tensor(numbers)), plain(torch.tensor(numbers))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(module.state_dict(), plain.state_dict())
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(module.scale.grad, plain.scale.grad)


def parts(x, w):
    if x.sum() > 0:
        y = x[:2] * w[:2]
    else:
        y = (x[:3] + 1) * w[:3]
    return y.cos(), y.shape[0] * 2


def parts_by_cond(x, w):
    y = torch.cond(x.sum() > 0, lambda x: x[:2] * w[:2], lambda x: (x[:3] + 1) * w[:3], (x,))
    return y.cos(), y.shape[0] * 2


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [parts, parts_by_cond])
def test_results_may_have_sizes_by_the_side_that_runs(program, dynamic):
    compiled = turret.compile(program, fullgraph=True, dynamic=dynamic, options={"on_error": "raise"})
    for value in (1.0, -2.0):
        found = []
        for call in (compiled, parts):  # eager's own ``torch.cond`` gives such results no gradients
            x, w = torch.full((4,), value, requires_grad=True), torch.arange(4.0).requires_grad_()
            result, size = call(x, w)
            found.append((result.detach(), size, *torch.autograd.grad(result.sum(), (x, w))))
        (one, size, *gradients), (other, other_size, *others) = found
        assert size == other_size
        torch.testing.assert_close((one, *gradients), (other, *others))


def test_results_of_other_sizes_that_are_not_contiguous_are_refused():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.t() * 2, lambda x: (x[:2] * 2).t(), (x,))

    with pytest.raises(CaptureError, match="sizes and strides"):
        turret.compile(program, fullgraph=True)(torch.ones(3, 4))


def test_results_of_one_branch_that_give_gradients_to_different_tensors_are_refused_unless_they_meet():
    def apart(x, w, u):
        if x.sum() > 0:
            one, other = w * x, u * x
        else:
            one, other = w + x, u - x
        return one, other

    def met(x, w, u):
        one, other = apart(x, w, u)
        return one.sum() * other

    x, w, u = torch.ones(2, 3), *(torch.ones(2, 3, requires_grad=True) for _ in range(2))
    with pytest.raises(CaptureError, match="gradients to different tensors"):  # eager leaves one gradient at None
        turret.compile(apart, fullgraph=True)(x, w, u)
    check(met)
