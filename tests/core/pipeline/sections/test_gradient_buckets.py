"""Graphs cut where gradients of a bucket are ready compute what the whole graph computes."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.products import GradientBuckets
from turret.pipeline.sections.gradient_buckets import cut
from turret.pipeline.sections.sections import join

WIDTH = 4
STEPS = {
    "tanh": torch.tanh, "double": lambda v: v * 2, "relu_": torch.relu_, "add_": lambda v: v.add_(1),
    "view": lambda v: v.view(2, 2, WIDTH).transpose(0, 1).reshape(4, WIDTH), "row_": lambda v: _write_row(v),
    "halves": lambda v: torch.cat(v.chunk(2)[::-1]), "constant": lambda v: _without_gradient(v),
    "autocast": lambda v: _in_low_precision(v),
}  # fmt: skip


def _write_row(v):
    v = v.clone()
    v[0].mul_(2)
    return v


def _without_gradient(v):
    with torch.no_grad():
        scale = v.abs().mean() + 1
    return v / scale


def _in_low_precision(v):
    with torch.autocast("cpu", torch.bfloat16):
        return (v @ torch.ones(WIDTH, WIDTH)).float()


def captured_of(program, *args, first=1, size=1):
    """The captured graph, with buckets of all inputs that require gradients."""
    captured = turret.captured_graph(program, *args)
    trained = frozenset(n for n, v in enumerate(captured.example_inputs) if v.requires_grad and v.dim() == 2)
    return attrs.evolve(captured, gradient_buckets=GradientBuckets(trained, first, size))


def gradients(function, args):
    args = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    outputs = function(*args)
    total = sum(o.float().sum() for o in outputs if o.requires_grad)
    found = torch.autograd.grad(total, [a for a in args if a.requires_grad], allow_unused=True)
    return outputs, found, args


def eagerly_joined(captured):
    sections = cut(captured)
    return sections, join(captured, sections, [section.graph.module for section in sections]) if sections else None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted(STEPS)), max_size=2), min_size=2, max_size=4), st.integers(1, 200))
def test_sections_together_give_what_the_whole_graph_gives_whatever_it_writes_to(layers, size):
    def program(x, counts, *weights):
        kept = []
        for weight, steps in zip(weights, layers, strict=True):
            x = x @ weight
            for step in steps:
                x = STEPS[step](x)
            counts.add_(x.detach().float().mean())
            kept.append(x + 1)
        return x, *kept, counts * 2

    torch.manual_seed(0)
    args = [torch.randn(4, WIDTH, requires_grad=True), torch.zeros(WIDTH)]
    args += [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in layers]
    captured = captured_of(program, *args, first=size, size=size)
    sections, joined = eagerly_joined(captured)
    if not sections:
        return
    try:
        expected = gradients(captured.module, args)
    except RuntimeError:  # a write to what autograd kept
        assume(False)
    torch.testing.assert_close(gradients(joined, args), expected)


def layers(x, *weights):
    for weight in weights:
        x = torch.tanh(x @ weight)
    return (x,)


def weights(count):
    return [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize(("first", "size", "expected"), [(64, 64, 4), (64, 128, 3), (128, 128, 2), (1000, 1000, 0)])
def test_a_section_is_as_large_as_a_bucket(first, size, expected):
    captured = captured_of(layers, torch.randn(2, WIDTH), *weights(4), first=first, size=size)
    assert len(cut(captured)) == expected


def test_no_cut_lies_between_a_tensor_and_a_write_to_it_nor_inside_of_another_mode():
    def writes(x, first, second):
        y = x @ first
        z = y @ second
        return (y.add_(z),)

    def changes_mode(x, first, second):
        with torch.no_grad():
            y = x @ first
            return (y @ second,)

    for program in (writes, changes_mode):
        captured = captured_of(program, torch.randn(2, WIDTH), *weights(2))
        for section in cut(captured):
            names = [n.name for n in section.graph.module.graph.nodes if n.op == "placeholder"]
            assert not any(name.startswith("matmul") for name in names), names


def test_an_error_behind_a_write_to_an_input_is_not_taken_for_one_that_left_inputs_alone():
    from turret.frames.eager_graphs import left_no_writes, note_writes

    def program(x, counts, first, second):
        y = x @ first
        counts.add_(1)
        return (y @ second,)

    args = [torch.randn(2, WIDTH), torch.zeros(2), *weights(2)]
    captured = captured_of(program, *args)
    sections = cut(captured)
    assert len(sections) == 2

    def fails(*args):
        error = ValueError("later")
        note_writes(error, False)
        raise error

    with pytest.raises(ValueError, match="later") as raised:
        join(captured, sections, [sections[0].graph.module, fails])(*args)
    assert not left_no_writes(raised.value)
    assert torch.equal(args[1], torch.ones(2))
