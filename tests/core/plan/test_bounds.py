"""``check_bounds``: an access outside of a kernel's memory is an error that says which; right programs have none."""

from __future__ import annotations

import ctypes
import linecache
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import turret
from turret.errors import OutOfBoundsError
from turret.ir import Var, call, cast, reduce
from turret.plan import Launch, Plan, Slot
from turret.plan.bounds import extent_position, note_extent, raise_out_of_bounds, report_position, table_length
from turret.plan.executor import PLAN_FILE
from turret.testing import Features, Program, assert_same, check, programs

CHECKED = {"check_bounds": True, "on_error": "raise", "cache": False}


class Shifted:
    """Lowerings that are wrong on purpose: they touch elements ``by`` places further along the last dimension."""

    def __init__(self, by: int) -> None:
        self.by = by

    def _place(self, index: Any) -> list:
        return [*index[:-1], index[-1] + self.by]

    def read(self, b: Any, x: Any) -> Any:
        return b.define(b.result, lambda index: call("sin", x.load(self._place(index))))

    def write(self, b: Any, x: Any) -> Any:
        return b.scatter(b.result, x, x.shape, self._place, x.load, "set")

    def read_row(self, b: Any, x: Any, *_: Any, **__: Any) -> Any:
        k = Var("k", x.shape[-1])
        return b.define(
            b.result, lambda index: reduce("sum", (k,), cast(x.load([*index[:1], k.index + self.by]), torch.float32))
        )

    @turret.hookimpl
    def turret_lowerings(self) -> dict:
        ops = torch.ops.aten
        return {ops.sin.default: self.read, ops.neg.default: self.write, ops.sum.dim_IntList: self.read_row}


def compiled(function: Any, by: int, **options: Any) -> Any:
    return turret.compile(function, plugins=[Shifted(by)], options={**CHECKED, **options})


def strided(shape: tuple[int, ...], before: int, after: int) -> torch.Tensor:
    """A tensor with memory to spare ahead of it and behind it."""
    count = torch.Size(shape).numel()
    return torch.randn(before + count + after)[before : before + count].view(shape)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(-3, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["read", "write", "row"]),
)
@example([300, 70], 1, 0, 0, "read")
@example([3, 70_000], 1, 0, 0, "row")
@example([70_000, 3], -1, 0, 0, "row")
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_shifted_access_is_reported_exactly_where_it_leaves_the_memory(
    shape: list[int], by: int, before: int, after: int, what: str
):
    shape = [*shape, 4][:2] if what == "row" else shape
    function = {"read": torch.sin, "write": torch.neg, "row": lambda x: x.sum(-1)}[what]
    x = strided(tuple(shape), before, after)
    if what == "write":
        before = after = 0  # the result has no memory to spare
    outside = by < -before or by > after
    run = compiled(lambda x: function(x), by)
    if not outside:
        run(x)
        return
    with pytest.raises(OutOfBoundsError) as caught:
        run(x)
    found = re.search(r"element (-?\d+) of (\w+) .*holds elements (-?\d+) to (-?\d+)", str(caught.value))
    index, low, high = int(found[1]), int(found[3]), int(found[4])
    assert (low, high) == (-before, x.numel() - 1 + after)
    assert not low <= index <= high
    assert -before + by <= index <= x.numel() - 1 + by


def test_transposed_reads_through_tiles_are_checked():
    x = torch.randn(256, 256)
    with pytest.raises(OutOfBoundsError, match="element 65536 of x"):
        compiled(lambda x, y: torch.sin(x).t() + y, 1)(x, torch.randn(256, 256))


def test_the_error_names_kernel_tensor_extent_and_the_users_line():
    def program(x):
        return torch.sin(x) + 1  # the user's line

    with pytest.raises(OutOfBoundsError) as caught:
        compiled(program, 1)(torch.randn(5, 4))
    for part in ("kernel k0_add", "element 20 of x", "float32[5, 4]", "elements 0 to 19", "# the user's line"):
        assert part in str(caught.value)
    assert isinstance(caught.value, turret.TurretError)


def test_a_buffer_in_the_arena_ends_where_it_ends_and_not_where_the_arena_does():
    def program(x, w):
        return torch.sin(x @ w) @ w, (x * 2) @ w

    with pytest.raises(OutOfBoundsError, match=r"element 64 of mm \(.*arena"):
        compiled(program, 1)(torch.randn(8, 8), torch.randn(8, 8))


def test_memory_without_elements_is_said_to_be_empty():
    slot = Slot("x", (0, 4), (4, 1), "float32", "cpu", "input")
    launch = Launch("segment0", (0,), ("k0_sin",), ("",))
    plan = Plan("graph", "cpu", (slot,), (0,), (launch,), (), check_bounds=True)
    sizes = (ctypes.c_int64 * table_length(plan))()
    note_extent(sizes, extent_position(plan, 0), torch.empty(0, 4))
    sizes[report_position(plan) : report_position(plan) + 4] = [1, 0, -4, 0]
    with pytest.raises(OutOfBoundsError, match=r"element -4 of x .*memory is empty"):
        raise_out_of_bounds(plan, launch, sizes)
    assert not sizes[report_position(plan)]


def test_calls_after_a_reported_one_are_right_again():
    step = compiled(lambda x: torch.sin(x) + 1, 1)
    inside = strided((4, 6), 0, 1)
    for _ in range(3):
        with pytest.raises(OutOfBoundsError):
            step(torch.randn(4, 6))
        moved = inside.as_strided((4, 6), (6, 1), 1)
        torch.testing.assert_close(step(inside), moved.sin() + 1)


def test_an_index_out_of_range_stays_the_users_own_error():
    gather = turret.compile(lambda x, i: x[i] * 2, options=CHECKED)
    assert_same(lambda x, i: x[i] * 2, gather, lambda: (torch.randn(5), torch.tensor([0, -5, 4])))
    with pytest.raises(IndexError):
        gather(torch.randn(5), torch.tensor([0, 5, 1]))


def test_sources_without_the_option_check_nothing():
    sources = {}
    for checks in (False, True):
        seen = []

        class Watch:
            @turret.hookimpl
            def turret_event(self, event: Any, seen: list = seen) -> None:
                if event.kind == "product" and event.stage == "codegen":
                    seen.append(event.product.source)

        step = turret.compile(
            lambda x: x.t().cumsum(0) + 1, plugins=[Watch()], options={**CHECKED, "check_bounds": checks}
        )
        step(torch.randn(40, 50))
        sources[checks] = "\n".join(seen)
    assert "checked_place" in sources[True]
    assert not re.search("checked_place|out_of_bounds|const report", sources[False])


def test_the_option_is_part_of_what_a_cached_graph_is_known_by(tmp_path):
    def program(x):
        return torch.sin(x) + 1

    x = torch.randn(5, 4)
    options = {**CHECKED, "cache": True, "cache_dir": str(tmp_path)}
    turret.compile(program, options={**options, "check_bounds": False})(x)
    for _ in range(2):  # the second time from the cache
        turret.reset()
        step = turret.compile(program, options=options)
        torch.testing.assert_close(step(x), program(x))
        assert "note_extent" in _executable_of(step, x)


def _executable_of(step: Any, x: torch.Tensor) -> str:
    """The generated Python that a call of ``step`` runs."""
    turret.reset()
    for name in _plan_files():  # of earlier plans, whose names a new one may have again
        del linecache.cache[name]
    step(x)
    return "".join("".join(linecache.getlines(name)) for name in _plan_files())


def _plan_files() -> list[str]:
    return [name for name in linecache.cache if name.startswith(PLAN_FILE)]


@given(programs(Features(max_steps=6)))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_right_programs_never_leave_their_memory(program: Program):
    check(program, lambda function: turret.compile(function, options=CHECKED))
