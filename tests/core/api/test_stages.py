"""The stages called one by one give a callable that is eager's equal, and refuse what they were not traced for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

import turret
from turret.errors import CaptureError, OptionError, StageError, TurretError, UnsupportedError
from turret.hooks.products import CapturedGraph, JointGraph, PartitionedGraph, Placement, StageGraph
from turret.ir import LoopProgram, Schedule
from turret.plan import Plan
from turret.testing import check, program_of_seed

OPTIONS = {"cache": False}


def planned(parts, role):
    return turret.codegen(turret.schedule(turret.lower(parts, role), options=OPTIONS), options=OPTIONS)


def by_stages(f, *args, dynamic=False):
    """A function of flat inputs that was made by one stage after the other."""
    parts = turret.partition(turret.joint_graph(f, *args, dynamic=dynamic))
    backward = None if parts.backward is None else planned(parts, "backward")
    return turret.assemble(parts, planned(parts, "forward"), backward)


def softmax(x, w):
    return torch.softmax(torch.relu(x @ w) + 1, -1)


def views_and_numbers(x, w, scale=3):
    y = torch.sin(x @ w) * scale
    return {"y": y, "number": scale + 1, "part": y[0], "again": y, "turned": w.t(), "input": x}


def attention(x, w):
    q = (x @ w).reshape(1, 2, 8, 16)
    return torch.nn.functional.scaled_dot_product_attention(q, q * 2, q + 1), q.max(-1)


def data_dependent_index(x, w):
    return torch.gather(x @ w, 1, torch.argsort(x @ w, 1)[:, :3]), (x @ w).cumsum(0)


def branching(x, w):
    return torch.cond((x.sum() > 0).reshape(()), lambda v: v @ w, lambda v: v.cos() @ w, (x,))


PROGRAMS = [softmax, views_and_numbers, attention, data_dependent_index, branching]


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(8, 16, dtype=dtype), torch.randn(16, 32, dtype=dtype, requires_grad=True)


def gradients(result, wanted):
    leaves = [r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor) and r.requires_grad]
    return torch.autograd.grad([leaf.square().sum() for leaf in leaves], wanted, allow_unused=True)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_and_gradients_are_eagers(program):
    # Sharp softmaxes tell sums in another order apart in float32.
    x, w = inputs(torch.float64)
    run = by_stages(program, x, w)
    for _ in range(2):
        result, expected = run(*turret.flat_inputs(program, x, w)), program(x, w)
        torch.testing.assert_close(list(result), pytree.tree_leaves(expected))
        torch.testing.assert_close(gradients(result, w), gradients(expected, w))
        x = torch.randn_like(x)


def test_each_stage_takes_and_gives_the_products_of_the_pipeline():
    x, w = inputs()
    captured = turret.captured_graph(softmax, x, w)
    assert all("val" in node.meta for node in captured.module.graph.nodes if node.op != "output")
    joint = turret.joint_graph(captured)
    parts = turret.partition(joint)
    graph = turret.stage_graph(parts, "backward")
    placement = turret.place(graph)
    program = turret.lower(graph, placement=placement)
    schedule = turret.schedule(program)
    plan = turret.codegen(schedule)
    kinds = CapturedGraph, JointGraph, PartitionedGraph, StageGraph, Placement, LoopProgram, Schedule, Plan
    products = captured, joint, parts, graph, placement, program, schedule, plan
    assert [type(product) for product in products] == list(kinds)
    assert joint.signature.training and graph.role == "backward" and "relu" in str(joint)
    assert str(turret.lower(parts, "backward")) == str(program)


@pytest.mark.parametrize("run", ["plan", "graph", "function"])
def test_anything_that_runs_a_graph_can_be_assembled(run):
    x, w = inputs()
    parts = turret.partition(turret.joint_graph(softmax, x, w))
    made = {
        "plan": lambda role: planned(parts, role),
        "graph": lambda role: getattr(parts, role),
        "function": lambda role: lambda args: list(getattr(parts, role)(*[args.pop(0) for _ in list(args)])),
    }[run]
    function = turret.assemble(parts, made("forward"), made("backward"))
    torch.testing.assert_close(gradients(function(x, w), w), gradients(softmax(x, w), w))


def test_no_stage_changes_what_it_is_given():
    x, w = inputs()
    captured = turret.captured_graph(attention, x, w)
    texts = [str(captured)]
    joint = turret.joint_graph(captured)
    texts.append(str(joint))
    parts = turret.partition(joint)
    texts.append(str(parts))
    graph = turret.stage_graph(parts)
    texts.append(str(graph))
    turret.schedule(turret.lower(graph))
    assert [str(product) for product in (captured, joint, parts, graph)] == texts


def test_capturing_runs_nothing_and_writes_to_nothing():
    x, w = inputs()
    before = x.clone()

    def program(x, w):
        return x.add_(1) @ w

    run = by_stages(program, x, w)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    other = x.clone()
    torch.testing.assert_close(run(x, w)[0], program(other, w))
    torch.testing.assert_close(x, other)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32))
        self.tied = torch.nn.Linear(32, 16, bias=False)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.tied(self.layers(x)).tanh()


@pytest.mark.parametrize("as_argument", [False, True])
def test_a_modules_parameters_and_buffers_are_inputs(as_argument):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(8, 16)
    twin = copy.deepcopy(net)
    program, args = (lambda net, x: net(x).square(), (net, x)) if as_argument else (net, (x,))
    run, flat = by_stages(program, *args), turret.flat_inputs(program, *args)
    assert len(flat) == len([*net.parameters(), *net.buffers()]) + 1 and flat[-1] is x
    torch.manual_seed(1)
    (result,) = run(*flat)
    torch.manual_seed(1)
    expected = twin(x).square() if as_argument else twin(x)
    torch.testing.assert_close(result, expected)
    found, wanted = (gradients(r, list(n.parameters())) for r, n in ((result, net), (expected, twin)))
    torch.testing.assert_close([g for g in found if g is not None], [g for g in wanted if g is not None])
    assert [g is None for g in found] == [g is None for g in wanted]
    torch.testing.assert_close(net.state_dict(), twin.state_dict())


def test_a_decomposition_of_ones_own_is_traced():
    def half_of(v):
        return 0.5 * torch.tanh(0.5 * v) + 0.5

    x = torch.randn(5)
    table = {torch.ops.aten.sigmoid.default: half_of}
    joint = turret.joint_graph(torch.sigmoid, x, decompositions=table)
    assert "tanh.default(%" in str(joint) and "sigmoid.default(%" not in str(joint)
    kept = turret.joint_graph(
        torch.nn.functional.softmax, x, -1, decompositions={torch.ops.aten._softmax.default: None}
    )
    assert "_softmax.default(%" in str(kept)


def test_plugins_and_options_hold_for_the_one_call():
    class Nothing:
        @turret.hookimpl
        def turret_fusion_score(self, candidate):
            return 0.0

    x, w = inputs()
    parts = turret.partition(turret.joint_graph(softmax, x, w), options={"partitioner": "save_all"})
    assert "save_all" in parts.report
    program = turret.lower(parts)
    assert len(turret.schedule(program, plugins=[Nothing()]).kernels) > len(turret.schedule(program).kernels)


def sizes_matter(x, y):
    return (x + y).sum(0) * x.shape[0] if x.shape[0] > 4 else x * y


def test_sizes_may_be_symbols_and_what_was_assumed_of_them_is_checked():
    run = by_stages(sizes_matter, torch.randn(8, 3), torch.randn(8, 3), dynamic=True)
    for size in (5, 6, 17):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        torch.testing.assert_close(run(x, y)[0], sizes_matter(x, y))
    for first, second in ((4, 4), (1, 1), (0, 0), (6, 1), (1, 6), (6, 7)):
        with pytest.raises(TurretError, match="trace again"):
            run(torch.randn(first, 3), torch.randn(second, 3))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda x, w: (x,), "takes 2 inputs"),
        (lambda x, w: (x.double(), w), "dtype"),
        (lambda x, w: (x[:4], w), "shape"),
        (lambda x, w: (x.t().contiguous().t(), w), "strides"),
        (lambda x, w: (x.requires_grad_(), w), "requires a gradient"),
        (lambda x, w: (3, w), "expected a tensor"),
        (lambda x, w: (torch.as_strided(w.detach(), (8, 16), (16, 1)), w), "share memory"),
    ],
)
def test_inputs_that_were_not_traced_are_refused(given, says):
    x, w = inputs()
    run = by_stages(lambda x, w: x.mul_(2) @ w, x, w)
    with pytest.raises(TurretError, match=says):
        run(*given(x, w))


KEPT: list = []
OTHER = torch.ones(16, 32)


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        (lambda x, w: x @ OTHER, UnsupportedError, "otherwise than by its arguments"),
        (lambda x, w: 3, UnsupportedError, "nothing was captured"),
        (lambda x, w: (KEPT.append(x @ w), x * 2)[1], UnsupportedError, "elsewhere than in its result"),
        (lambda x, w: print(x @ w), CaptureError, "one graph"),
        (lambda x, w: (x @ w, OTHER), UnsupportedError, "neither an input nor computed"),
    ],
)
def test_what_is_no_graph_of_its_arguments_is_refused(program, error, says):
    with pytest.raises(error, match=says):
        turret.joint_graph(program, *inputs())


def test_a_role_or_backward_that_the_partition_lacks_is_refused():
    x, w = inputs()
    inference = turret.partition(turret.joint_graph(softmax, x, w.detach()))
    training = turret.partition(turret.joint_graph(softmax, x, w))
    for parts, role in ((inference, "backward"), (training, "inference"), (training, "forwards")):
        with pytest.raises(UnsupportedError, match="role is"):
            turret.lower(parts, role)
    with pytest.raises(UnsupportedError, match="has a backward"):
        turret.assemble(training, training.forward)
    with pytest.raises(UnsupportedError, match="has no backward"):
        turret.assemble(inference, inference.forward, training.backward)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: turret.joint_graph(3, torch.ones(2)),
        lambda: turret.joint_graph(turret.captured_graph(torch.sin, torch.ones(2)), torch.ones(2)),
        lambda: turret.joint_graph(torch.sin, torch.ones(2), plugins="mine"),
        lambda: turret.joint_graph(torch.sin, torch.ones(2), options=["cache"]),
        lambda: turret.partition(3),
        lambda: turret.stage_graph(3),
        lambda: turret.place(3),
        lambda: turret.lower(3),
        lambda: turret.schedule(3),
        lambda: turret.codegen(3),
        lambda: turret.load(3),
        lambda: turret.assemble(3, 4),
    ],
)
def test_what_is_no_product_is_refused(wrong):
    with pytest.raises(OptionError, match=r"given|expected"):
        wrong()


def shared_write(a, b):
    return a * 2, b.add_(1)


def test_inputs_that_share_memory_are_traced_as_such():
    def given():
        memory = torch.arange(12.0).reshape(3, 4)
        return memory, memory[1]

    run = by_stages(shared_write, *given())
    mine, theirs = given(), given()
    torch.testing.assert_close(list(run(*mine)), list(shared_write(*theirs)))
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(TurretError, match="share memory"):
        run(torch.ones(3, 4), torch.ones(4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_are_those_of_the_capture(mode):
    x, w = inputs()
    with mode():
        result, expected = by_stages(softmax, x, w)(x, w)[0], softmax(x, w)
    torch.testing.assert_close(result, expected, rtol=0.05, atol=5e-3)  # a kernel rounds to bfloat16 once
    assert (result.dtype, result.requires_grad) == (expected.dtype, expected.requires_grad)


def test_a_stage_that_fails_raises_whatever_the_policy():
    class Fails:
        @turret.hookimpl
        def turret_schedule(self):
            raise ValueError("no schedule today")

    program = turret.lower(turret.partition(turret.joint_graph(torch.sin, torch.ones(3))))
    with pytest.raises(StageError, match=r"stage 'schedule' \(plugin .*Fails\) failed: ValueError: no schedule today"):
        turret.schedule(program, plugins=[Fails()], options={"on_error": "fallback"})


def compiled_by_stages(f, refused):
    """``f``, which returns a tuple, through the stages in its first call; what they refuse runs eagerly and is kept."""
    made: list = []

    def call(*args):
        try:
            if not made:
                made.append(by_stages(f, *args))
        except TurretError as error:
            refused.append(error)
            return f(*args)
        return made[0](*turret.flat_inputs(f, *args))  # a checkpoint calls twice

    return call


def test_drawn_programs_are_eagers_stage_by_stage():
    refused: list = []
    for seed in range(12):
        check(program_of_seed(seed), lambda f: compiled_by_stages(f, refused), calls=1)
    assert len(refused) <= 2, refused
