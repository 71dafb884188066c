"""What raises while a graph runs raises from the program's own lines, after the effects of the lines before."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome
from turret.frames import eager_graphs
from turret.hooks.hookspecs import hookimpl


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.calls = []

    def forward(self, index, *rest, scale=1, **named):
        self.calls.append(len(self.calls))
        row = self.embedding(index) * scale
        self.calls.append("after")
        return row.sum() + len(rest) + len(named)


def test_an_index_out_of_range_raises_from_the_program_s_line_with_the_effects_before_it():
    table = Table()
    compiled = turret.compile(table)
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    assert_same(compiled(good, 3, scale=2, more=1), table(good, 3, scale=2, more=1))
    table.calls.clear()
    with pytest.raises(IndexError, match="index out of range in self") as caught:
        compiled(bad, 3, scale=2, more=1)
    assert table.calls == [0]
    assert any(frame.name == "forward" and "self.embedding" in frame.line for frame in traceback.extract_tb(caught.tb))
    assert caught.value.__context__ is None
    assert_same(compiled(good), table(good))


def test_handlers_of_the_program_see_what_an_operation_raises():
    def program(x, index, log):
        try:
            log.append("tried")
            return torch.gather(x, 0, index) + 1
        except (IndexError, RuntimeError) as error:
            log.append(type(error).__name__)
            return x - 1

    def run(function, index):
        log: list = []
        return function(torch.ones(3), index, log), log

    observed = Observed(program)
    for index in (torch.tensor([0, 1]), torch.tensor([0, 7])):
        assert_same(run(observed, index), run(program, index))
    assert len(observed.graphs) == 1


def doubled(x, n):
    return (x * n).sum() + x


WITH_REGIONS = {
    "checkpoint": lambda x: checkpoint(doubled, x, 2, use_reentrant=False),
    "checkpoint with a context": lambda x: checkpoint(
        doubled, x, 2, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts([])
    ),
    "function": lambda x: Twice.apply(x),
    "vmap": lambda x: torch.vmap(lambda v: v * 2)(x),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 3, (x,)),
    "wrapper": lambda x: Logged(x.detach() * 2) + 1,
}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Logged(torch.Tensor):
    """A wrapper of one tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Logged(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        made = op(*(v.inner if isinstance(v, cls) else v for v in args), **(kwargs or {}))
        return cls(made) if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize("region", WITH_REGIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_of_several_graphs_raises_from_the_program_s_line(region, grad):
    def program(x, index, log):
        log.append("before")
        y = WITH_REGIONS[region](x)
        log.append("between")
        return y, torch.gather(x, 0, index)

    observed, found = Observed(program), []
    observed(torch.ones(3, requires_grad=grad), torch.tensor([0]), [])
    for function in (observed, program):
        log: list = []
        (how, error) = outcome(function, (torch.ones(3, requires_grad=grad), torch.tensor([9]), log), {})
        found.append((how, type(error), vars(error), log))
    assert found[0] == found[1] and found[0][3] == ["before", "between"]


def test_behind_a_graph_break_the_rest_of_the_frame_runs_as_python():
    def program(x, index, log):
        y = x * 2
        turret.graph_break()
        log.append("behind")
        return torch.gather(y, 0, index)

    def run(function, index):
        log: list = []
        return outcome(lambda: function(torch.ones(3), index, log), (), {}), log

    observed = Observed(program)
    for index in (torch.tensor([0, 1]), torch.tensor([0, 7])):
        (how, _), log = run(observed, index)
        (expected, _), plain = run(program, index)
        assert (how, log) == (expected, plain)


def write_to(x):
    x.add_(1)


def write_to_a_part(x):
    x[1:].mul_(3)


def write_through_detach(x):
    x.detach().neg_()


def run_eagerly(program):
    return turret.compile(program, plugins=[Refusing()], options={"cache": False})


@pytest.mark.parametrize("form", ["plain", "view", "expanded", "parameter", "inference"])
@pytest.mark.parametrize("write", [write_to, write_to_a_part, write_through_detach])
@pytest.mark.parametrize("compiled", [Observed, run_eagerly])
def test_a_graph_that_changed_an_argument_is_run_again_on_what_it_was(compiled, write, form):
    def program(x, whole, index, log):
        log.append(1)
        try:
            write(x)
            log.append(torch.gather(x, 0, index).shape)
        except RuntimeError as error:
            log.append(type(error).__name__)
            raise
        finally:
            log.append(x._version)
        return x + whole.sum()

    if form == "expanded" and write is not write_through_detach:
        pytest.skip("eager refuses the write")
    function = compiled(program)
    for index in ([0], [9], [1], [7]):
        seen = []
        for run in (program, function):
            with torch.inference_mode(form == "inference"):
                whole = torch.arange(6.0)
                x = {"view": lambda: whole[1:4], "expanded": lambda: whole[:1].expand(3)}.get(form, lambda: whole)()
                x = torch.nn.Parameter(whole) if form == "parameter" else x
                log: list = []
                with torch.set_grad_enabled(form != "parameter"):
                    how = outcome(lambda: run(x, whole, torch.tensor(index), log), (), {})
                seen.append((repr(how), log, whole.tolist(), x.tolist(), [] if x.is_inference() else [x._version]))
        assert seen[0] == seen[1]


def test_what_is_too_large_to_be_kept_is_not_run_again(monkeypatch):
    def program(x, index, log):
        log.append(1)
        x.add_(1)
        return torch.gather(x, 0, index)

    monkeypatch.setattr(eager_graphs, "LIMIT", 8)
    observed, x, log = Observed(program), torch.zeros(3), []
    with pytest.raises(RuntimeError):
        observed(x, torch.tensor([9]), log)
    assert_same(x, torch.ones(3))
    assert log == []


class Wrong:
    """A plugin whose graphs raise."""

    def __init__(self):
        self.messages = []

    @hookimpl
    def turret_wrap_runtime(self, function):
        def raising(*args):
            raise RuntimeError("a kernel of its own is wrong")

        return raising

    @hookimpl
    def turret_event(self, event):
        if event.kind == "fallback":
            self.messages.append(event.message)


def test_a_graph_at_fault_is_on_record_and_raises_where_asked_to():
    plugin, x = Wrong(), torch.ones(2)
    with pytest.warns(UserWarning, match="a kernel of its own is wrong, which Python does not"):
        assert_same(turret.compile(lambda x: x + 1, plugins=[plugin])(x), x + 1)
    assert "a kernel of its own is wrong" in plugin.messages[-1]
    with pytest.raises(RuntimeError, match="a kernel of its own is wrong"):
        turret.compile(lambda x: x + 1, plugins=[plugin], options={"on_error": "raise"})(x)


def test_memory_that_ran_out_is_not_tried_again():
    class Full(Wrong):
        @hookimpl
        def turret_wrap_runtime(self, function):
            def raising(*args):
                raise torch.OutOfMemoryError("no room")

            return raising

    plugin = Full()
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        turret.compile(lambda x: x + 1, plugins=[plugin])(torch.ones(2))
    assert not plugin.messages


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
def test_a_write_at_indices_of_a_dtype_that_eager_refuses_raises_after_the_writes_and_effects_before_it(dtype):
    def program(x, index, log):
        log.append("before")
        x[:, 0] = 7
        log.append("written")
        x[:, index.to(dtype)] = 1
        log.append("after")

    seen = []
    for run in (program, turret.compile(program)):
        for _ in range(2):
            x, log = torch.zeros(2, 3), []
            with pytest.raises(IndexError):
                run(x, torch.tensor([1]), log)
            seen.append((x.tolist(), log))
    assert seen[0] == seen[1] == seen[2] == seen[3]


class Refusing:
    """Every graph runs eagerly."""

    @hookimpl
    def turret_joint(self, context, captured, decompositions):
        raise NotImplementedError("no graph at all")


def test_a_graph_that_runs_eagerly_and_raises_before_it_writes_is_run_again_as_python():
    def program(x, index, log):
        log.append("before")
        x[index] = 1
        log.append("after")

    compiled = turret.compile(program, plugins=[Refusing()], options={"cache": False})
    for index, told in ((torch.tensor([1]), ["before", "after"]), (torch.tensor([9]), ["before"])):
        for run in (program, compiled):
            x, log = torch.zeros(3), []
            try:
                run(x, index, log)
            except IndexError:
                assert told == ["before"]
            assert log == told and x.sum() == len(told) - 1


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("through", [lambda x: x, lambda x: x.data], ids=["itself", "data"])
def test_a_graph_that_runs_eagerly_writes_to_what_it_made_and_raises_is_run_again_as_python(inference, through):
    def program(x, index, log):
        log.append("before")
        mine = through(x + 1)
        mine.add_(1)
        log.append(mine[index])
        through(x).zero_()

    with torch.inference_mode(inference):
        seen = []
        for run in (program, turret.compile(program, plugins=[Refusing()], options={"cache": False})):
            x, log = torch.ones(3), []
            run(x, torch.tensor([1]), log)
            with pytest.raises(IndexError):
                run(x, torch.tensor([9]), log)
            seen.append((x.tolist(), [str(entry) for entry in log]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("function", [torch.complex, torch.polar])
def test_parts_of_two_dtypes_raise_from_the_program_s_line_after_its_effects(function):
    def program(x, log):
        log.append("before")
        function(x, torch.ones(3))
        log.append("after")

    for kind, told in ((torch.float32, ["before", "after"]), (torch.float64, ["before"])):
        for run in (program, turret.compile(program)):
            log = []
            try:
                run(torch.ones(3, dtype=kind), log)
            except RuntimeError:
                assert kind == torch.float64
            assert log == told


def test_a_view_that_autograd_forbids_to_change_raises_after_what_came_before():
    def program(x, items):
        with torch.no_grad():
            view = x[:]
            view.add_(1)
        print(end="")
        items.insert(0, 1)
        view[0] = 1

    for function in (program, Observed(program)):
        items: list = []
        assert outcome(function, (torch.ones(2, 3, requires_grad=True), items), {})[0] == "raised"
        assert items == [1]


@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
def test_an_error_that_eager_raises_is_the_program_s_alone_to_tell_of(capfd):
    def program(x):
        return x.softmax(3)

    with pytest.raises(IndexError, match="Dimension out of range") as caught:
        turret.compile(program, options={"cache": False})(torch.ones(2, 3))
    assert any(frame.name == "program" for frame in traceback.extract_tb(caught.tb))
    assert capfd.readouterr().err == ""
