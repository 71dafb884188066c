"""What can go wrong where recordings share memory, example by example, in both ways of giving outputs out."""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
import warnings

import pytest
import torch
import torch.utils.checkpoint

import turret
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.api import cudagraphs

BOTH = pytest.mark.parametrize("outputs", ["fresh", "pool"])


def graphs(outputs: str, **options: object) -> dict[str, object]:
    return {"cudagraphs": True, "cudagraph_outputs": outputs, **options}


def only_pool() -> cudagraphs.PoolReport:
    """The pool of what this test compiled; those of functions that earlier tests of the process let go are gone."""
    gc.collect()
    (pool,) = cudagraphs.report().pools
    return pool


def host(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.cpu() for t in tensors]


def equal(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected)


@BOTH
@on_acme
def test_replays_in_another_order_than_recorded_are_right(world: World, outputs: str) -> None:
    def func1(x):
        return torch.cumsum(x * 3, 0) + 5

    def func2(x):
        return x**2

    one, two = world.compile(func1, **graphs(outputs)), world.compile(func2, **graphs(outputs))
    turret.cudagraph_mark_step_begin()
    for order in ("12", "12", "12", "21", "21", "2", "1", "21"):
        turret.cudagraph_mark_step_begin()
        x, y = rand(4), rand(4)
        found = {n: one(x) if n == "1" else two(y) for n in order}
        expected = {"1": func1(x), "2": func2(y)}
        for n, tensor in found.items():
            equal(tensor.cpu(), expected[n].cpu())
    assert cudagraphs.report().replays > 6


@BOTH
@on_acme
def test_a_branch_that_is_recorded_after_a_replay_does_not_overwrite_what_lives(world: World, outputs: str) -> None:
    def foo(x):
        y = torch.cumsum(x * x * torch.sign(x), 0)
        z = y + 1 if y.sum() > 0 else y - 1
        turret.graph_break()
        return torch.cumsum(z, 0) * 2 + y

    compiled = world.compile(foo, **graphs(outputs))
    for sign in (1, 1, 1, -1, -1, 1, -1, -1, 1, -1, 1):
        x = (torch.arange(1.0, 5.0) * sign).to("acme")
        equal(compiled(x).cpu(), foo(x).cpu())
    told = cudagraphs.report()
    pool = only_pool()
    assert pool.graphs == (5 if outputs == "pool" else 4), (
        pool.tree
    )  # what follows both branches is recorded behind each
    assert told.replays >= 15


@on_acme
def test_access_to_an_overwritten_output_raises(world: World) -> None:
    def my_model(x):
        return torch.matmul(x, x)

    compiled = world.compile(my_model, **graphs("pool"))
    x = rand(10, 10)
    for _ in range(4):
        y1 = compiled(x)
        kept = y1.clone()
        compiled(x)
        with pytest.raises(RuntimeError, match=r"output of CUDAGraphs that has been overwritten.*my_model"):
            y1.cpu()
        equal(kept.cpu(), my_model(x).cpu())


@on_acme
def test_fresh_outputs_are_never_overwritten(world: World) -> None:
    def my_model(x):
        return torch.matmul(x, x)

    compiled = world.compile(my_model, **graphs("fresh"))
    given = [rand(10, 10) for _ in range(6)]
    found = [compiled(x) for x in given]
    equal(host(*found), host(*map(my_model, given)))
    assert cudagraphs.report().bytes_copied == 0


TREE = """
══════════════════════════════════════════════════
CUDA Graph Tree (device 0)
Graphs in tree: 3
══════════════════════════════════════════════════
└── Graph[0] foo() outputs=2
    ├── Graph[1] bar() outputs=1 [expects_dead: [(0, 1)]]
    └── Graph[2] bar() outputs=1
""".strip()


@on_acme
def test_an_output_that_lives_where_it_did_not_leads_to_a_sibling(world: World) -> None:
    def foo(x):
        return x + 1, torch.cumsum(x, 0)

    def bar(y):
        return y * 2

    first, second = world.compile(foo, **graphs("pool")), world.compile(bar, **graphs("pool"))
    for i in range(3):
        turret.cudagraph_mark_step_begin()
        x = rand(4)
        y1, y2 = first(x)
        if i == 1:
            del y2
        z = second(y1)
        equal(z.cpu(), bar(foo(x)[0]).cpu())
        if i != 1:
            equal(y2.cpu(), foo(x)[1].cpu())
    pool = only_pool()
    assert pool.tree == TREE
    again = [f.rerecordings for f in cudagraphs.report().functions if f.rerecordings]
    assert again == [("outputs of foo live that did not when it was recorded",)]


@BOTH
@on_acme
def test_a_write_to_an_input_is_seen_by_the_caller(world: World, outputs: str) -> None:
    def mutating(x):
        x.add_(1)
        return x * 2

    compiled = world.compile(mutating, **graphs(outputs))
    for _ in range(5):
        x = rand(4)
        other = x.clone()
        equal(compiled(x).cpu(), mutating(other).cpu())
        equal(x.cpu(), other.cpu())
    assert cudagraphs.report().replays == 4


@BOTH
@on_acme
def test_gradients_add_up_over_steps(world: World, outputs: str) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours, theirs = (m.to("acme") for m in models)
    compiled = world.compile(ours, **graphs(outputs))
    for step in range(9):
        x = rand(3, 4)
        for run in (compiled, theirs):
            run(x).square().sum().backward()
        if step % 3 == 2:
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                equal(a.grad.cpu(), b.grad.cpu())
                a.grad = b.grad = None
    told = cudagraphs.report()
    assert told.replays >= 10 and not any(f.plain_calls for f in told.functions)


@BOTH
@on_acme
def test_a_checkpoint_with_random_numbers_draws_the_same_again_in_each_replay(world: World, outputs: str) -> None:
    def block(x):
        return torch.nn.functional.dropout(torch.tanh(x), 0.5)

    def f(x):
        return torch.utils.checkpoint.checkpoint(block, x * 2, use_reentrant=False) * 3

    compiled = world.compile(f, **graphs(outputs))
    seen = []
    for _ in range(6):
        x = (torch.rand(4, 16) + 0.5).to("acme").requires_grad_()
        made = compiled(x)
        made.sum().backward()
        kept = made.detach().cpu() != 0
        slope = 2 * 2 * 3 * (1 - torch.tanh(x.detach().cpu() * 2) ** 2)
        equal(x.grad.cpu(), torch.where(kept, slope, 0.0))
        seen.append(kept)
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(seen))


@BOTH
@on_acme
def test_two_forwards_before_their_backwards_keep_what_these_need(world: World, outputs: str) -> None:
    weight = rand(4, 4, grad=True)
    one = world.compile(lambda x: torch.tanh(x @ weight), **graphs(outputs))
    two = world.compile(lambda x: torch.sigmoid(torch.cumsum(x * 2, 0)), **graphs(outputs))
    for _ in range(6):
        x = rand(3, 4)
        two(one(x)).sum().backward()
        found, weight.grad = weight.grad, None
        torch.sigmoid(torch.cumsum(torch.tanh(x @ weight) * 2, 0)).sum().backward()
        expected, weight.grad = weight.grad, None
        equal(found.cpu(), expected.cpu())
    assert cudagraphs.report().replays >= 12


@BOTH
@on_acme
def test_each_size_has_a_recording_up_to_a_limit(world: World, outputs: str) -> None:
    w = rand(2, 2)

    def f(x):
        return torch.cumsum(x @ w, 0) + 1

    compiled = world.compile(f, **graphs(outputs, cudagraph_max_recorded_sizes=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            for size in (3, 4, 5, 6):
                x = rand(size, 2)
                equal(compiled(x).cpu(), f(x).cpu())
    (said,) = [w for w in caught if w.category is turret.TurretWarning]
    line = inspect.getsource(sys.modules[__name__]).splitlines()[said.lineno - 1]
    assert said.filename == __file__ and "compiled(x).cpu()" in line
    for way_out in ("Pad its inputs", "cudagraph_skip_dynamic_graphs=True", "raise cudagraph_max_recorded_sizes"):
        assert way_out in str(said.message)
    dynamic = max(cudagraphs.report().functions, key=lambda told: told.sizes)
    assert dynamic.sizes == 2 and any("cudagraph_max_recorded_sizes" in reason for reason in dynamic.plain_calls)


@on_acme
def test_sizes_that_are_not_named_run_without_a_recording(world: World) -> None:
    def f(x):
        return torch.cumsum(x * 2, 0) + 1

    compiled = world.compile(f, **graphs("fresh", cudagraph_capture_sizes=(4,)))
    for _ in range(3):
        for size in (5, 4, 3):
            x = rand(size, 2)
            equal(compiled(x).cpu(), f(x).cpu())
    dynamic = max(cudagraphs.report().functions, key=lambda told: sum(told.plain_calls.values()))
    assert dynamic.sizes == 1 and any("cudagraph_capture_sizes" in reason for reason in dynamic.plain_calls)
    assert dynamic.padded_calls == 0  # each row depends on those before it


@BOTH
@on_acme
def test_a_batch_whose_samples_stand_alone_is_padded_to_the_next_size_that_is_named(world: World, outputs: str) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    model = torch.nn.Sequential(*layers).to("acme")

    def f(x):
        made = model(x)
        return made, made.flatten(0, 1) + 1, x.shape[0], x[..., :2]

    compiled = world.compile(f, **graphs(outputs, cudagraph_capture_sizes=(4, 8, 16)))
    with torch.no_grad():
        for size in (3, 5, 7, 4, 8, 6, 9, 11, 3, 15, 30):
            turret.cudagraph_mark_step_begin()
            x = rand(size, 3, 8)
            found, expected = compiled(x), f(x)
            equal(host(*found[:2], found[3]), host(*expected[:2], expected[3]))
            assert found[2] == size and [t.stride() for t in found[:2]] == [t.stride() for t in expected[:2]]
    dynamic = max(cudagraphs.report().functions, key=lambda told: told.padded_calls)
    assert (dynamic.recordings, dynamic.sizes, dynamic.padded_calls) == (3, 3, 7)
    assert dynamic.plain_calls == {"sizes (30,) are not among cudagraph_capture_sizes": 1}


@on_acme
def test_sections_of_a_batch_are_padded_between_calls_that_are_not(world: World) -> None:
    w = rand(8, 8)

    def f(x):
        mixed = torch.mm(x, w).sin()
        return torch.cumsum(mixed, 0).cos() @ w

    options = {"cudagraph_capture_sizes": (8,), "cudagraph_split_ops": ("aten::cumsum",)}
    compiled = world.compile(f, **graphs("fresh", **options))
    for size in (3, 5, 7, 8, 6, 2):
        x = rand(size, 8)
        equal(compiled(x).cpu(), f(x).cpu())
    padded = [told for told in cudagraphs.report().functions if told.padded_calls]
    assert len(padded) == 2 and all(told.sizes == 1 and told.replays >= 3 for told in padded)


@on_acme
def test_a_training_step_on_batches_of_many_sizes_makes_few_recordings(world: World) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours, theirs = (m.to("acme") for m in models)
    compiled = world.compile(ours, **graphs("fresh"))
    for _ in range(2):
        for size in range(2, 14):
            x = rand(size, 4)
            for run in (compiled, theirs):
                run(x).square().sum().backward()
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                equal(a.grad.cpu(), b.grad.cpu())
    assert all(told.recordings <= 3 for told in cudagraphs.report().functions)
    assert sum(told.replays for told in cudagraphs.report().functions) >= 4


@pytest.mark.parametrize("options", [graphs("fresh"), graphs("pool"), graphs("fresh", cudagraph_trees=False)])
@on_acme
def test_inputs_that_are_expanded_or_have_gaps_are_read_as_they_lie(world: World, options: dict[str, object]) -> None:
    compiled = world.compile(lambda x, y: (x @ y).relu() + x.sum(), **options)
    for _ in range(4):
        x, y = rand(1, 4).expand(3, 4), rand(8, 6)[::2, 1:]
        found = compiled(x, y)
        equal(found.cpu(), ((x @ y).relu() + x.sum()).cpu())
    assert cudagraphs.report().replays == 3


@BOTH
@on_acme
def test_a_copy_to_the_host_is_left_out_of_recordings(world: World, outputs: str) -> None:
    def fn(x):
        x = torch.relu(x)
        cpu_val = x.sum().cpu()
        x = torch.softmax(x, dim=-1)
        return x, cpu_val

    compiled = world.compile(fn, **graphs(outputs))
    for _ in range(4):
        x = rand(4, 5)
        found, expected = compiled(x), fn(x)
        equal(found[0].cpu(), expected[0].cpu())
        equal(found[1], expected[1])
    told = cudagraphs.report()
    assert told.replays >= 3 and any(f.skipped for f in told.functions)
