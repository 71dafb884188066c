"""Library calls that are launched by themselves give what calls give, whatever memory, sizes and settings they have."""

from __future__ import annotations

import threading
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.cudagraphs.direct_lab import Heard
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.plugins.cudagraphs.direct import diversion, recording
from turret.plugins.cudagraphs.direct.diversion import RecordingTime
from turret.testing import Features, check, program_of_seed

MLP = ((16, 32), (32, 64), (64, 16))


def clock_at(now: list[float], spent: float = 0.0) -> Any:
    """What recordings took of this process's time is asked of a clock that shows ``now``."""
    return mock.patch.object(diversion, "recording_time", RecordingTime(clock=lambda: now[0], spent=spent))


def layers(*shapes: tuple[int, int]) -> Any:
    """Layers with weights of these shapes, each with a bias and an activation."""
    weights = [(rand(*shape) / 8, rand(shape[1])) for shape in shapes]

    def run(x: torch.Tensor) -> torch.Tensor:
        for weight, bias in weights:
            x = torch.relu(torch.addmm(bias, x, weight)) + 1
        return x

    return run


def launched(world: World) -> int:
    """How many library calls ran by their launches since the last time."""
    count = sum(name.startswith("launched ") for name, _ in world.driver.launched)
    world.driver.launched.clear()
    return count


def agree(compiled: Any, function: Any, *inputs: Any) -> None:
    torch.testing.assert_close(compiled(*inputs).cpu(), function(*inputs).cpu())


@on_acme
def test_calls_are_launched_from_the_third_call_on(world: World) -> None:
    function, heard = layers(*MLP), Heard()
    compiled = world.compile(function, heard)
    counts = []
    for _ in range(5):
        agree(compiled, function, rand(8, 16))
        counts.append(launched(world))
    assert counts == [0, 0, 0, 3, 3]
    assert [m.partition(": ")[2] for m in heard.messages] == ["3 of 3 library calls are launched directly"]


@on_acme
def test_an_explanation_says_what_is_launched(world: World) -> None:
    function = layers(*MLP)
    found = turret.explain(function, plugins=[world.plugin], calls=4)(rand(8, 16))
    (line,) = found.launched_calls
    assert line.endswith(": 3 of 3 library calls are launched directly")
    assert line in str(found)


@on_acme
def test_nothing_is_launched_where_the_option_says_so(world: World) -> None:
    function = layers(*MLP)
    compiled = world.compile(function, direct_library_calls=False)
    for _ in range(5):
        agree(compiled, function, rand(8, 16))
    assert launched(world) == 0


@on_acme
def test_each_size_of_a_graph_has_launches_of_its_own(world: World) -> None:
    function, heard = layers(*MLP), Heard()
    compiled = turret.compile(function, dynamic=True, plugins=[world.plugin, heard], options={"cache": False})
    with clock_at([0.0]):
        for _ in range(5):
            for rows in (3, 8, 5):
                agree(compiled, function, rand(rows, 16))
    assert launched(world) == 3 * 3 * 2
    assert len(heard.messages) == 3
    assert all("3 of 3" in message for message in heard.messages)
    agree(compiled, function, rand(7, 16))
    assert launched(world) == 0


@on_acme
def test_further_sizes_wait_until_recordings_are_a_small_share_of_the_time(world: World) -> None:
    function, heard, now = layers(*MLP), Heard(), [0.0]
    compiled = turret.compile(function, dynamic=True, plugins=[world.plugin, heard], options={"cache": False})

    def rounds() -> int:
        for _ in range(5):
            for rows in (3, 8, 5, 6):
                agree(compiled, function, rand(rows, 16))
        return len(heard.messages)

    with clock_at(now, spent=2.0):
        assert rounds() == 2
        now[0] = 19.0
        assert rounds() == 2
        now[0] = 21.0
        assert rounds() == 4


@on_acme
def test_of_calls_that_are_alike_one_is_recorded(world: World) -> None:
    function = layers(*[(16, 16)] * 5, (16, 32), (32, 16), (16, 16))
    compiled = world.compile(function)
    counts = []
    with mock.patch.object(recording, "fast_callable", wraps=recording.fast_callable) as made:
        for _ in range(5):
            agree(compiled, function, rand(8, 16))
            counts.append(made.call_count)
    assert launched(world) == 2 * 8
    assert counts[:2] == [0, 0] and counts[2] % 3 == 0 and counts[2:] == [counts[2]] * 3


@on_acme
def test_sizes_that_are_not_recorded_yet_are_launched(world: World) -> None:
    function = layers(*MLP)
    given = {"cache": False, "cudagraphs": True, "on_error": "raise"}
    compiled = turret.compile(function, dynamic=True, plugins=[world.plugin], options=given)
    with clock_at([0.0]):
        for _ in range(5):
            for rows in (2, 3, 4, 5, 6, 7):
                agree(compiled, function, rand(rows, 16))
    assert launched(world) == 4 * 2 * 3  # of four sizes, in their fourth and fifth call
    assert turret.cudagraphs.report().recordings == 2


@on_acme
@pytest.mark.parametrize("offset", [0, 1, 3, 4, 8])
def test_inputs_may_begin_anywhere(world: World, offset: int) -> None:
    function = layers(*MLP)
    compiled = world.compile(function)
    for _ in range(4):
        agree(compiled, function, rand(8, 16))
    memory = rand(8 * 16 + 8)
    agree(compiled, function, memory[offset : offset + 8 * 16].view(8, 16))
    assert launched(world) >= 3


@on_acme
def test_results_that_are_kept_are_overwritten_by_no_later_call(world: World) -> None:
    function = layers(*MLP)
    compiled = world.compile(function)
    kept = []
    for _ in range(6):
        x = rand(8, 16)
        kept.append((compiled(x), function(x)))
    for found, expected in kept:
        torch.testing.assert_close(found.cpu(), expected.cpu())


@on_acme
def test_views_copies_and_calls_that_are_not_known_are_between_launches(world: World) -> None:
    weight = rand(16, 16)

    def function(x: torch.Tensor) -> Any:
        product = torch.mm(x, weight)
        first, second = product.t()[:8], product.view(4, -1)
        sums = torch.cumsum(torch.mm(first.contiguous(), product), 0)
        x.add_(1)
        return torch.mm(second.reshape(-1, 16)[:3], sums.t()), torch.sort(product)[0], torch.mm(weight, weight)

    compiled = world.compile(function)
    for _ in range(6):
        x = rand(16, 16)
        y = x.clone()
        found, expected = compiled(x), function(y)
        torch.testing.assert_close([t.cpu() for t in (*found, x)], [t.cpu() for t in (*expected, y)])
    assert launched(world) >= 3


@on_acme
def test_gradients_are_those_of_calls(world: World) -> None:
    weights = [rand(*shape, grad=True) for shape in MLP]

    def function(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x.square().mean()

    compiled = world.compile(function)
    for _ in range(6):
        x = rand(8, 16)
        expected = torch.autograd.grad(function(x), weights)
        found = torch.autograd.grad(compiled(x), weights)
        torch.testing.assert_close([g.cpu() for g in found], [g.cpu() for g in expected])
    assert launched(world) >= 3 * (3 + 5)


@on_acme
def test_results_that_a_call_would_allocate_lie_in_memory_that_the_plan_makes(world: World) -> None:
    weight = rand(8, 8) / 4

    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.mm(x, weight)
        second = torch.cdist(first, weight)
        return torch.mm(second, first) + second

    heard = Heard()
    compiled = world.compile(function, heard)
    kept = []
    for _ in range(6):
        x = rand(8, 8)
        kept.append((compiled(x), function(x)))
    for found, expected in kept:
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
    assert ["3 of 3 library calls" in message for message in heard.messages] == [True], heard.messages


@on_acme
def test_results_of_other_kinds_and_random_numbers_stay_with_calls(world: World) -> None:
    weight = rand(8, 8) / 4

    def function(x: torch.Tensor) -> torch.Tensor:
        values, indices = torch.topk(torch.mm(x, weight), 4)
        return torch.mm(values, torch.ones_like(values).t()) + indices.sum() + torch.rand_like(values).shape[0]

    heard = Heard()
    compiled = world.compile(function, heard)
    for _ in range(5):
        agree(compiled, function, rand(8, 8))
    (message,) = heard.messages
    assert "aten::topk.default is called: " in message
    assert launched(world) >= 2


@on_acme
def test_settings_of_products_that_change_bring_the_calls_back(world: World) -> None:
    function = layers(*MLP)
    compiled = world.compile(function)
    for _ in range(4):
        agree(compiled, function, rand(8, 16))
    launched(world)
    products = torch.backends.cuda.matmul
    before = products.allow_fp16_reduced_precision_reduction
    products.allow_fp16_reduced_precision_reduction = not before
    try:
        agree(compiled, function, rand(8, 16))
        assert launched(world) == 0
    finally:
        products.allow_fp16_reduced_precision_reduction = before


@on_acme
def test_threads_share_what_is_launched(world: World) -> None:
    function = layers(*MLP)
    compiled = world.compile(function)
    inputs = [rand(8, 16) for _ in range(4)]
    expected = [function(x).cpu() for x in inputs]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(20):
            if not torch.allclose(compiled(inputs[number]).cpu(), expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert launched(world) > 0


@on_acme
def test_a_recording_of_the_program_s_own_has_calls(world: World) -> None:
    function = layers(*MLP)
    compiled = world.compile(function)
    for _ in range(4):
        agree(compiled, function, rand(8, 16))
    launched(world)
    x = rand(8, 16)
    recording = world.graphs.record(0, lambda: compiled(x))
    assert launched(world) == 0
    assert sum(node.name.startswith("aten::mm") for node in recording.nodes) == 3


@on_acme
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_programs_of_products_and_other_steps_give_what_they_give_without(world: World, data: st.DataObject) -> None:
    width = 8
    steps = data.draw(
        st.lists(st.sampled_from(["mm", "addmm", "bmm", "relu", "view", "add_", "cumsum", "sum", "t"]), max_size=9)
    )
    weight, bias = rand(width, width) / 4, rand(width)

    def function(x: torch.Tensor) -> Any:
        kept = []
        for step in steps:
            if step == "mm":
                x = torch.mm(x, weight)
            elif step == "addmm":
                x = torch.addmm(bias, x, weight)
            elif step == "bmm":
                x = torch.bmm(x.view(2, -1, width), weight.expand(2, width, width)).view(-1, width)
            elif step == "relu":
                x = torch.relu(x) * 2
            elif step == "view":
                kept.append(x[1:])
            elif step == "add_":
                x = x.clone().add_(1)
            elif step == "cumsum":
                x = torch.cumsum(x, 0)
            elif step == "sum":
                kept.append(x.sum(0))
            elif step == "t":
                x = x.t().contiguous().t() if x.shape[0] != width else x.t()
        return x, kept

    compiled = world.compile(function)
    for rows in (8, 8, 8, 8, 8, 4, 4, 4, 4, 4):
        x = rand(rows, width)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(
            [found[0].cpu(), *(t.cpu() for t in found[1])], [expected[0].cpu(), *(t.cpu() for t in expected[1])]
        )


@on_acme
def test_drawn_programs_give_what_eager_gives_call_after_call(world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(1000, 1030):
            turret.reset()
            check(program_of_seed(seed, Features(device="acme")), world.compile, calls=6)
    assert launched(world) > 0
