"""Texts of numbers that depend on data are part of full graphs where nothing reads them: Python writes them behind it."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from tests.plugins.capture.stored_lab import Watch
from turret.plugins.capture.values.number_texts import Spelling


class Name(str):
    """A text of a class of the program's."""


NAMED = Name("1.88")
X = torch.tensor([0.125, -2.0, 3.75])


def of_floats(x):
    total = x.sum().item()
    return f"{total:.2f}", f"{total}", "%.3f and %s" % (total, x[0].item()), "{:>9.1f} {n!r}".format(total, n=total)


def of_ints_and_bools(x):
    number, flag = (x > 0).sum().item(), (x > 9).any().item()
    return f"{number:04d} {flag}", str(number), repr(flag), "%d" % number, f"{number / 4:.2f}"


def joined(x):
    parts = [f"{v:.1f}" for v in x.tolist()]
    text = ", ".join(parts)
    parts.append("late")
    return text, parts, "[" + text + "]", f"{text:>40}", repr(text), str(text)


def of_tensors_that_change(x):
    total = x.sum()
    text = f"{total:.2f} {total}"
    total.add_(5)
    return text, total


def in_a_loop(x):
    lines = []
    for step in range(3):
        x = x * 1.5
        lines.append(f"{step}: {x.mean().item():.3f}")
    return x, "\n".join(lines)


def of_rounded_numbers(x):
    total = x.sum().item()
    return f"{round(total, 2)} {round(total)}", round(total, 1), round((x > 0).sum().item()), round(total, None)


def in_containers(x):
    held = [x[0].item(), {"a": x[1].item()}]
    text = f"{held}"
    held.append(3)
    return text, str({"n": (x[2].item(),)}), repr([x[0].item()]), held


def of_tensors_of_one_element(x):
    first, total = x[0], x.sum()
    return "{:.2f} {n:>9.1f} {}".format(first, 3, n=total), "%.1f|%5.2e%%" % (first, x[:1]), "%g" % total


def by_methods_of_texts(x):
    text = f"{x.sum().item():.2f}"
    return text.rjust(12), text.strip("0").upper().replace(".", ","), text.zfill(9) + "!"


def of_scalars_of_numpy(x):
    return f"{x.numpy().sum():.3f}", x + 1


def of_whole_tensors(x):
    return str(x), f"{x * 2}", "%s and %d" % (x > 0, 3), "{!r} {}".format(x[0], x.int()), f"{[x, {'a': x.sum()}]}"


def as_keys(x):
    made = {f"loss {n}: {v.item():.2f}": v for n, v in enumerate(x)}
    total = x.sum().item()
    key = f"{total:.1f}"
    made[key] = x
    made[f"{total:.1f}"] = made[key] + 1
    return made, {key: 1, "total": 2, 3: 4}, "mean" in made, made.get("mean"), key in made, len(made)


PROGRAMS = [
    of_floats, of_ints_and_bools, joined, of_tensors_that_change, in_a_loop, of_rounded_numbers, in_containers,
    of_tensors_of_one_element, by_methods_of_texts, of_scalars_of_numpy, of_whole_tensors, as_keys,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_they_are_those_of_each_call(program):
    observed = Observed(program, fullgraph=True)
    for x in (X, X / 3, X * -7):
        assert_same(observed(x), program(x))
    assert len(observed.graphs) <= 2


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not of_scalars_of_numpy], ids=lambda p: p.__name__)
def test_captures_of_them_are_stored_for_other_processes(program, tmp_path):
    watch = Watch()
    turret.compile(program, fullgraph=True, plugins=[watch], options={"cache_dir": str(tmp_path)})(X)
    assert not any("in every process" in message for kind, _, message in watch.events if kind == "perf_hint")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 2.5, 1e300])
def test_numbers_are_rounded_as_python_rounds_them(number):
    observed = Observed(lambda x: round(x.item(), 2), fullgraph=True)
    assert repr(observed(torch.tensor(number, dtype=torch.float64))) == repr(round(number, 2))


def test_they_are_kept_by_objects_from_before():
    class Logging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lines = []

        def forward(self, x):
            self.last = f"{x.mean().item():.2f}"
            self.lines.append(self.last + "!")
            return x + 1

    module, expected = Logging(), Logging()
    observed = Observed(module, fullgraph=True)
    for x in (X, X * 2):
        assert_same(observed(x), expected(x))
    assert (module.last, module.lines) == (expected.last, expected.lines)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + len(f"{x.sum().item():.2f}"),
        lambda x: x + (f"{x.sum().item():.2f}" == "1.88"),
        lambda x: {f"{x.sum().item():.2f}": x + 1, "1.88": x},
        lambda x: {f"{x[0].item():.0f}": 1, f"{x[1].item():.0f}": 2},  # may be one key
        lambda x: {f"{x.sum().item():.2f}": x + 1, NAMED: x},
        lambda x: ({f"{x.sum().item():.2f}": 1} == {"1.88": 1}, x + 1),
        lambda x: ("1.9" in {f"{x.sum().item():.1f}": 1}, x + 1),
        lambda x: x + len(str(x)),
        lambda x: ("{:.2f}".format(x[0] > 0), "%d" % x[0], x + 1),
        lambda x: (x + 1, "%d" % x.sum().item()),  # raises for what is no number
    ],
)
def test_one_that_is_read_breaks_the_graph(program):
    observed = Observed(program)
    for x in (X, X * 100):
        assert_same(observed(x), program(x))


def test_a_format_that_does_not_fit_raises_where_the_program_can_catch_it():
    def program(x):
        try:
            return x, f"{x.sum().item():d}"
        except ValueError as error:
            return x + 1, str(error)

    assert_same(Observed(program)(X), program(X))


def test_a_text_of_a_tensor_is_of_what_was_in_it_then():
    def program(x):
        made = x * 2
        texts = str(made), str(made[1:]), str(x)
        made[1] = 5
        x.add_(1)
        return texts, made, str(made)

    assert_same(Observed(program)(X.clone()), program(X.clone()))


@pytest.mark.parametrize("make", [torch.nn.Parameter, lambda x: x.clone().requires_grad_()])
def test_a_text_of_a_tensor_with_gradients_names_eagers_history(make):
    def program(x):
        return str(x), f"{x}", x * 2

    def of_what_is_computed(x):
        return str(x * 2)

    assert_same(Observed(program, fullgraph=True)(make(X)), program(make(X)))
    assert "grad_fn=<MulBackward0>" in Observed(of_what_is_computed)(make(X))


@pytest.mark.parametrize("value", [X, torch.nn.Parameter(X[0])])
def test_a_format_that_tensors_do_not_take_raises_where_the_program_can_catch_it(value):
    def program(x):
        try:
            return f"{value:.2f}", x
        except TypeError as error:
            return str(error), x + 1

    assert_same(Observed(program, fullgraph=True)(X), program(X))


def test_a_list_that_holds_itself_is_left_to_python():
    def program(x):
        held = [x[0].item()]
        held.append(held)
        return str(held), x + 1

    assert_same(Observed(program)(X), program(X))


@pytest.mark.parametrize(
    "one, other, differ",
    [
        (Spelling("a"), Spelling("b"), True),
        (Spelling("a"), Spelling("a"), False),
        (Spelling("loss ").then(Spelling.unknown("0123")), Spelling("loss"), True),
        (Spelling("loss ").then(Spelling.unknown("0123")), Spelling("loss 12"), False),
        (Spelling("loss ").then(Spelling.unknown("0123")), Spelling("loss a"), True),
        (Spelling.unknown("01").then(Spelling("%")), Spelling.unknown("01").then(Spelling("$")), True),
        (Spelling.unknown("01").then(Spelling("%")), Spelling.unknown(None), False),
        (Spelling("loss ").then(Spelling.unknown("1")), Spelling.unknown("1"), True),
        (Spelling.unknown("1").then(Spelling(" s")), Spelling.unknown("1"), True),
        (Spelling("11").then(Spelling.unknown("1")), Spelling.unknown("1"), False),
        (Spelling("a").then(Spelling.unknown("b1")), Spelling("ab").then(Spelling.unknown("1")), False),
        (Spelling.unknown("1").then(Spelling("x")).then(Spelling.unknown("2")), Spelling("1x2"), False),
        (Spelling.unknown("1").then(Spelling("x")).then(Spelling.unknown("2")), Spelling("1y2"), True),
    ],
)
def test_two_texts_differ_where_no_numbers_make_them_equal(one, other, differ):
    assert one.differs_from(other) is other.differs_from(one) is differ


# Texts of numbers that change from call to call.


def keys_of_steps(x, n, log):
    return {f"loss_{n}": x * 2, "lr": n, f"loss_{n}_again": [f"{n:03d}"]}


def logged(x, n, log):
    log[f"loss_{n}"] = x.sum()
    log["last"] = f"step {n}"
    return x + 1, log[f"loss_{n}"]


def logged_and_deleted(x, n, log):
    log.update({f"loss_{n}": x})
    log["gone"] = x
    del log["gone"]
    return x * n


def of_sizes_and_floats(x, n, log):
    rate = log["rate"]
    log["rate"] = rate / 2
    y = x.repeat(n + 1)
    return y * rate, f"{tuple(y.shape)} {rate:.3f} {log['rate']}"


def written_in_all_ways(x, n, log):
    return x + 1, str(n), repr(n * 2), "%d of %s" % (n, n + 1), ",".join([f"{n}", "a"]), f"a{n}".upper() + "z"


def printed(x, n, log):
    print(f"step {n}")
    return x * 2


LEFT = [keys_of_steps, logged, logged_and_deleted, of_sizes_and_floats, written_in_all_ways, printed]


def compared(x, n, log):
    return x * 2 if f"{n}" == "3" else x


def found_by(x, n, log):
    return x * {"k0": 1, "k3": 2}.get(f"k{n}", 3)


def keys_that_may_be_equal(x, n, log):
    return {f"k{n}": x, "k3": x * 2}


def logged_beside_keys_that_may_be_equal(x, n, log):
    log[f"loss_{n}"] = x
    return x + ("loss_3" in log)


def logged_over_one_that_may_be_equal(x, n, log):
    log["loss_3"] = x * 5
    log[f"loss_{n}"] = x
    return x + 1


def counted_with_all(x, n, log):
    log[f"loss_{n}"] = x
    return x + len(log), list(log)


def raised_and_read(x, n, log):
    try:
        raise ValueError(f"bad {n}")
    except ValueError as error:
        return x + 1, str(error)


READ = [
    compared, found_by, keys_that_may_be_equal, logged_beside_keys_that_may_be_equal,
    logged_over_one_that_may_be_equal, counted_with_all, raised_and_read,
]  # fmt: skip


def told(call, capsys):
    log = {"loss_2": 1, "rate": 0.5}
    found = [(call(X, n, log), list(log)) for n in (0, 1, 2, 3, 4, 5, 3)]
    return found, log, capsys.readouterr().out


@pytest.mark.parametrize("program", LEFT)
def test_numbers_that_change_and_are_only_written_are_captured_once_more(program, capsys):
    observed = Observed(program)
    assert_same(told(observed, capsys), told(program, capsys))
    assert len(observed.units) == 2  # for the first number, and for all others


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", READ)
def test_numbers_whose_texts_are_read_are_constants(program, dynamic, fullgraph, capsys):
    observed = Observed(program, fullgraph=fullgraph, dynamic=dynamic)
    assert_same(told(observed, capsys), told(program, capsys))
    assert not observed.breaks


def one_in_each_side(x, n):
    if x.sum() > 0:
        return x, f"up {n}"
    return x * 2, f"down {n}"


def one_that_a_side_leaves(x, n):
    name = f"k{n}"
    if x.sum() > 0:
        name = "up"
    return x + 1, name


def one_that_both_sides_add_to(x, n):
    name = f"k{n}"
    name = name + "up" if x.sum() > 0 else name + "down"
    return x + 1, name


@pytest.mark.parametrize("program", [one_in_each_side, one_that_a_side_leaves, one_that_both_sides_add_to])
def test_texts_of_numbers_that_change_are_told_apart_behind_a_branch_on_data(program):
    observed = Observed(program, fullgraph=True)
    for n, x in enumerate((X, -X, X, -X)):
        assert_same(observed(x, n), program(x, n))
