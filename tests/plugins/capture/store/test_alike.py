"""Modules that are alike, each compiled by itself: captured once, and each computes with what is its own."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import turret
from turret.hooks import plugin_manager
from turret.pipeline.stage_calls import create_context
from turret.plugins.capture.dispatching.entry import turret_capture
from turret.plugins.capture.facts import module_tensors
from turret.plugins.capture.store import alike


class Block(nn.Module):
    def __init__(self, width: int = 6, number: int = 0) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.register_buffer("bias", torch.randn(width))
        self.number, self.factor = number, 1.5
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).tanh() * self.factor + self.bias * self.number


X = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 6)


MANAGER = plugin_manager.create(())


def captured(module: nn.Module) -> Callable:
    """The module's call with graphs run as they were captured."""
    return turret_capture(
        context=create_context(plugin_manager.configure(MANAGER, None, {"on_error": "raise"}), MANAGER),
        target=module.__call__,
        compile_graph=lambda graph: graph.module,
        fullgraph=False,
        dynamic=None,
    )


def captures(calls: list[Callable]) -> int:
    return sum(getattr(call, "_turret_call", call).turret_settings.root.captures for call in calls)


def assert_as_eager(call: Callable, plain: nn.Module) -> None:
    """Result, gradients of the parameters and of the input."""
    found, expected = [], []
    for function, seen in ((call, found), (plain, expected)):
        x = X.clone().requires_grad_()
        result = function(x)
        needed = [p for p in plain.parameters() if p.requires_grad]
        seen += [result, *torch.autograd.grad(result.square().sum(), [x, *needed], allow_unused=True)]
    torch.testing.assert_close(found, expected)


def assert_all_as_eager(calls: list[Callable], plain: list[nn.Module]) -> None:
    for call, one in zip(calls, plain, strict=True):
        assert_as_eager(call, one)


def test_eight_blocks_are_captured_once() -> None:
    plain = [Block() for _ in range(8)]
    blocks = [captured(block) for block in plain]
    assert_all_as_eager(blocks, plain)
    assert captures(blocks) == 1
    with torch.no_grad():
        for one in plain:
            one.linear.weight.mul_(0.5)
    assert_all_as_eager(blocks, plain)
    assert captures(blocks) == 1


def test_a_block_that_comes_later_takes_part() -> None:
    plain = [Block() for _ in range(4)]
    first = [captured(plain[0])]
    assert_as_eager(first[0], plain[0])
    others = [captured(block) for block in plain[1:]]
    assert_all_as_eager(others, plain[1:])
    assert captures(first) == 1
    assert captures(others) == 1


def test_numbers_of_layers_become_symbols() -> None:
    plain = [Block(number=number) for number in range(8)]
    blocks = [captured(block) for block in plain]
    assert_all_as_eager(blocks, plain)
    assert captures(blocks) <= 4


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_other_shapes_and_recorded_graphs_share_nothing(mode: str | None) -> None:
    plain = [Block(), Block(), Block(5)]
    blocks = [turret.compile(block, mode=mode) for block in plain]
    groups = [block._turret_call.turret_settings.alike for block in blocks]
    if mode:
        assert groups == [None] * 3
    else:
        assert groups[0] is groups[1] is not groups[2]


def test_large_models_share_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(module_tensors.MOST_TENSORS // 2 + 1)))
    assert turret.compile(model)._turret_call.turret_settings.alike is None


def test_modules_that_cannot_be_hashed_or_have_no_shapes_yet_are_compiled_all_the_same() -> None:
    class Listed(list, nn.Module):  # unhashable, as a dataclass is
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x)

    call, module = captured(Listed()), nn.LazyLinear(3)
    assert call(X).shape == X.shape
    assert turret.compile(module)._turret_call.turret_settings.alike is None


def test_groups_end_with_their_modules() -> None:
    blocks = [captured(Block(7)) for _ in range(2)]
    group = blocks[0].turret_settings.alike
    assert group in alike._groups.values()
    number = id(group)
    del group, blocks
    gc.collect()
    assert number not in map(id, alike._groups.values())


def test_reset_forgets_what_is_shared() -> None:
    plain = [Block() for _ in range(3)]
    blocks = [captured(block) for block in plain]
    assert_all_as_eager(blocks, plain)
    turret.reset()
    assert captures(blocks) == 0
    assert_all_as_eager(blocks, plain)
    assert captures(blocks) == 1


def _freeze(block: Block) -> None:
    block.linear.weight.requires_grad_(False)


def _tie(block: Block) -> None:
    block.norm.bias = block.linear.bias


def _replace(block: Block) -> None:
    block.linear = nn.Linear(6, 6).double()


def _reweigh(block: Block) -> None:
    block.norm.weight = nn.Parameter(torch.linspace(1, 2, 6, dtype=torch.float64))


def _transpose(block: Block) -> None:
    block.linear.weight = nn.Parameter(torch.randn(6, 6).double().t())


def _hook(block: Block) -> None:
    block.norm.register_forward_hook(lambda module, args, result: result * 2)


def _forward(block: Block) -> None:
    block.linear.forward = lambda x: x * 3


def _retype(block: Block) -> None:
    block.norm = nn.Tanh()


def _factor(block: Block) -> None:
    block.factor = -0.5


def _number(block: Block) -> None:
    block.number = 5


def _buffer(block: Block) -> None:
    block.bias = torch.ones(6)


CHANGES = [
    _freeze, _tie, _replace, _reweigh, _transpose, _hook, _forward, _retype, _factor, _number, _buffer,
]  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(CHANGES)), max_size=4), st.booleans())
def test_what_one_of_them_changes_holds_for_that_one(
    changes: list[tuple[int, Callable[[Block], None]]], before: bool
) -> None:
    plain = [Block() for _ in range(3)]
    blocks = [captured(block) for block in plain]
    assert blocks[0].turret_settings.alike
    if not before:
        assert_all_as_eager(blocks, plain)
    for number, change in changes:
        change(plain[number])
        assert_all_as_eager(blocks, plain)


def test_copies_of_a_compiled_block_take_part() -> None:
    plain = [Block()]
    blocks = [turret.compile(plain[0], options={"on_error": "raise", "cache": False})]
    blocks += [copy.deepcopy(blocks[0]) for _ in range(3)]
    plain = [block._turret_original for block in blocks]
    assert_all_as_eager(blocks, plain)
    assert captures(blocks) == 1


def test_a_function_of_many_parameters_is_captured_twice_at_most() -> None:
    f = turret.compile(lambda p: p.sin() * 2, options={"on_error": "raise", "cache": False})
    for _ in range(10):
        p = nn.Parameter(torch.randn(5))
        torch.testing.assert_close(f(p), p.sin() * 2)
    assert f.turret_settings.root.captures <= 2
