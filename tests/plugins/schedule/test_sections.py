"""Steps are cut at what cannot be recorded, with the reason, into as few sections as their dependencies allow."""

from __future__ import annotations

import itertools

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import turret
from tests.core.plan.section_lab import Recording, stages
from tests.plugins import loop_lab
from turret.errors import VerificationError
from turret.graph.obstacles import Obstacle
from turret.hooks import plugin_manager
from turret.hooks.devices import devices_of
from turret.hooks.products import Target
from turret.ir import Extern, LoopProgram, Ref, ScheduleSection, TensorDecl, verify
from turret.plugins.schedule.sections import in_few_sections

RECORDING = plugin_manager.create((Recording(),))
REC, NOT, ANY = True, False, None


def runs(order, kinds):
    return len([k for k, _ in itertools.groupby(kinds[n] for n in order if kinds[n] is not None)])


def is_legal(order, followers):
    place = {n: k for k, n in enumerate(order)}
    return sorted(order) == list(range(len(followers))) and all(
        place[n] < place[later] for n, after in enumerate(followers) for later in after
    )


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 7))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    kinds = draw(st.lists(st.sampled_from([REC, NOT, ANY]), min_size=count, max_size=count))
    return [frozenset(b for a, b in edges if a == n) for n in range(count)], kinds


@given(graphs())
def test_no_legal_order_has_fewer_sections(graph):
    followers, kinds = graph
    given_order = tuple(range(len(kinds)))
    found = in_few_sections(given_order, followers, kinds)
    assert is_legal(found, followers)
    fewest = min(runs(o, kinds) for o in itertools.permutations(given_order) if is_legal(o, followers))
    assert runs(found, kinds) == fewest
    if runs(given_order, kinds) == fewest:
        assert found == given_order


@pytest.mark.parametrize(
    ("kinds", "edges", "expected"),
    [
        # a diamond with both its sides cut: the cuts become neighbours
        ([REC, NOT, REC, NOT, REC], [(0, 1), (0, 3), (1, 4), (3, 4), (0, 2), (2, 4)], 3),
        # work of the host in the middle that nothing after it needs
        ([REC, NOT, REC, REC], [(0, 1), (0, 2), (2, 3)], 2),
        # work of the host in the middle that needs nothing
        ([REC, NOT, REC], [(0, 2), (1, 2)], 2),
        # two cuts that can be neighbours, and one that cannot
        ([REC, NOT, REC, NOT, REC, NOT], [(0, 1), (0, 2), (0, 3), (1, 4), (3, 4), (2, 4), (4, 5)], 4),
        # a chain has no other order
        ([REC, NOT, REC, NOT, REC], [(0, 1), (1, 2), (2, 3), (3, 4)], 5),
        # views go with whatever is around them
        ([NOT, ANY, NOT], [(0, 1), (1, 2)], 1),
    ],
)
def test_sections_of_small_graphs(kinds, edges, expected):
    followers = [frozenset(b for a, b in edges if a == n) for n in range(len(kinds))]
    found = in_few_sections(tuple(range(len(kinds))), followers, kinds)
    assert runs(found, kinds) == expected and is_legal(found, followers)


def test_what_may_be_in_several_sections_stays_where_it_was():
    # 0 and 2 could both run first; 2 (of a later layer) is not moved there, where its result would be kept for longer
    kinds = [REC, NOT, REC, REC, NOT, NOT, REC]
    edges = [(0, 1), (1, 3), (2, 3), (3, 4), (0, 5), (4, 6), (5, 6)]
    followers = [frozenset(b for a, b in edges if a == n) for n in range(len(kinds))]
    found = in_few_sections(tuple(range(len(kinds))), followers, kinds)
    assert runs(found, kinds) == 5 and is_legal(found, followers)
    given_order = [0, 1, 2, 3, 5, 4, 6]
    kept = in_few_sections(given_order, followers, kinds)
    assert list(kept) == given_order


def captured(made):
    return [section.captured for section in made.sections]


def reasons(made):
    return [str(obstacle) for section in made.sections for obstacle in section.obstacles]


@given(loop_lab.programs(), st.sampled_from(["", "aten::neg"]))
def test_programs_in_sections_compute_the_same_with_an_arena_for_each(program, split):
    with devices_of(RECORDING):
        made = loop_lab.schedule(program, target=Target("cpu"), cudagraphs=True, cudagraph_split_ops=split)
    verify(made)
    inputs = loop_lab.arguments(program)
    for found, expected in zip(loop_lab.run_schedule(made, inputs), loop_lab.run_program(program, inputs), strict=True):
        assert torch.equal(found, expected)
    assert captured(made) in ([], *([c % 2 == k for c in range(len(made.sections))] for k in (0, 1)))


def test_two_named_calls_of_a_diamond_share_one_section():
    def program(x):
        y = x @ x
        return (torch.sort(y * 2)[0] + torch.sort(y + 1)[0]).relu() @ x

    made, _ = stages(program, torch.randn(8, 8), split=["aten::sort"])
    assert captured(made) == [True, False, True]


@pytest.mark.parametrize("name", ["aten::sort", "aten::sort.default", "torch.ops.aten.sort", "aten.sort.default"])
def test_ops_are_named_in_any_of_the_usual_ways(name):
    made, _ = stages(lambda x: torch.sort(x + 1)[0] * 2, torch.randn(8), split=[name])
    assert captured(made) == [True, False, True]


def test_an_op_that_is_decomposed_is_named_by_what_the_program_calls():
    def program(x):
        return torch.softmax(x * 2, -1) + 1

    whole, _ = stages(program, torch.randn(8, 8))
    cut, _ = stages(program, torch.randn(8, 8), split=["aten::softmax"])
    assert whole.sections == () and captured(cut) == [True, False, True]
    attention, _ = stages(
        lambda x: torch.nn.functional.scaled_dot_product_attention(x + 1, x, x) * 2,
        torch.randn(1, 2, 8, 8),
        split=["aten::scaled_dot_product_attention"],
    )
    assert captured(attention) == [True, False, True]


@torch.library.custom_op("sections::unsafe", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def unsafe(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@unsafe.register_fake
def _(x):
    return torch.empty_like(x)


DATA = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
REASONS = {
    "is tagged cudagraph_unsafe": lambda x: unsafe(x + 1) * 2,
    "makes a tensor whose size depends on data": lambda x: (x.sin(), torch.nonzero(x + 1)),
    "waits on the host for values of the device": lambda x: x.sin() * (x + 1).sum().item(),
    "works with unbacked symbols": lambda x: (x.cos(), torch.nonzero(x + 1) * 2),
    "decides on the host what runs next": lambda x: torch.cond((x + 1).sum() > 0, torch.sin, torch.cos, (x * 2,)) + 1,
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_border_has_its_reason_and_the_line(reason):
    made, plan = stages(REASONS[reason], torch.randn(6), **DATA)
    assert any(reason in text for text in reasons(made))
    assert True in captured(made) and False in captured(made)
    assert str(made).count("-- not recorded") == str(plan).count("-- not recorded") == captured(made).count(False)
    shown = [line for line in str(plan).splitlines() if reason in line]
    assert shown and any("lambda x" in line for line in shown)


SIZES_OF_DATA = {
    "nonzero": lambda x: torch.nonzero(x),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "a mask, summed": lambda x: x[x > 0].sum(),
    "unique": lambda x: torch.unique(x),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, (x > 0).long()),
    "bincount": lambda x: torch.bincount((x > 0).long()),
    "a row at a number of data": lambda x: torch.narrow(x, 0, (x > 0).sum().clamp(0, 2).item(), 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SIZES_OF_DATA)
def test_what_has_a_size_or_a_place_that_depends_on_data_is_left_out_and_the_rest_recorded(name):
    function = SIZES_OF_DATA[name]
    made, _ = stages(lambda x: (x.sin() * 2, function(x + 1)), torch.randn(6), **DATA)
    assert True in captured(made) and False in captured(made)
    assert any("depend" in text or "waits" in text or "mask" in text for text in reasons(made))


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bool, [False]), (torch.int64, [])])
def test_a_mask_is_counted_on_the_host_and_an_index_is_not(dtype, expected):
    host = torch.device("cpu")
    x, v = (TensorDecl(n, (4,), (1,), torch.float32, host) for n in "xv")
    index, made = TensorDecl("i", (4,), (1,), dtype, host), TensorDecl("y", (4,), (1,), torch.float32, host)
    call = Extern(torch.ops.aten.index_put.default, (Ref("x"), [Ref("i")], Ref("v")), {}, (made,))
    program = LoopProgram("p", (x, index, v), (call,), (Ref("y"),))
    schedule = turret.schedule(program, plugins=[Recording()], options={"cudagraphs": True})
    assert captured(schedule) == expected
    assert all("counts the elements of a mask" in text for text in reasons(schedule))


def test_nothing_is_cut_where_nothing_is_recorded():
    def program(x):
        return torch.sort(x * 2)[0] + torch.nonzero(x).sum()

    options = {**DATA, "cudagraph_split_ops": "aten::sort"}

    def made(plugins, **more):
        given = {"plugins": plugins, "options": {**options, **more}}
        lowered = turret.lower(turret.partition(turret.joint_graph(program, torch.randn(8), **given), **given), **given)
        schedule = turret.schedule(lowered, **given)
        return schedule, turret.codegen(schedule, **given)

    plain, plan = made([])
    for plugins, more in (([Recording()], {}), ([], {"cudagraphs": True, "cudagraph_split_ops": ()})):
        other, again = made(plugins, **more)
        assert not other.sections and _text(other) == _text(plain)
        assert again.source == plan.source and _text(again) == _text(plan)


def _text(product):
    name = getattr(product, "program", product).name
    return str(product).replace(name, "graph")


def test_dynamic_graphs_are_not_cut_where_none_are_to_be_recorded():
    made, _ = stages(
        lambda x: torch.sort(x * 2)[0] + 1, torch.randn(8, 3), split=["aten::sort"], dynamic=True,
        cudagraph_skip_dynamic_graphs=True,
    )  # fmt: skip
    assert made.sections == ()


def test_a_graph_of_which_nothing_is_recorded_is_one_section_that_says_why():
    made, _ = stages(lambda x: torch.sort(x)[0], torch.randn(8), split=["aten::sort"])
    assert captured(made) == [False]


def test_memory_that_crosses_a_border_is_refused_by_the_verifier():
    made, _ = stages(lambda x: torch.mm(torch.mm(x, x).sin(), x).cos(), torch.randn(8, 8))
    verify(made)
    steps = len(made.steps)
    cut = (ScheduleSection(0, 0), ScheduleSection(1, steps - 1, (Obstacle("it", "waits"),)))
    with pytest.raises(VerificationError, match="lives across the border of sections at step 1"):
        verify(attrs.evolve(made, sections=cut))
    with pytest.raises(VerificationError, match="are not its"):
        verify(attrs.evolve(made, sections=cut[:1]))
