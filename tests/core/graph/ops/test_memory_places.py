"""Calls that count from the start of a tensor's memory give eager's results, wherever in its memory a tensor lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import turret
from turret.hooks.products import NodePlacement, Placement

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "whole": lambda: torch.arange(12.0),
    "later": lambda: torch.arange(30.0)[5:17],
    "rows": lambda: torch.arange(30.0).view(5, 6)[1:3],
    "columns": lambda: torch.arange(30.0).view(5, 6)[:, 1:3],
    "steps": lambda: torch.arange(30.0)[::3],
    "transposed": lambda: torch.arange(12.0).view(3, 4).t(),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
}

PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "offset": lambda a, n: a * a.storage_offset(),
    "offset of a view": lambda a, n: a[1:] * a[1:].storage_offset(),
    "read": lambda a, n: a.as_strided((3,), (1,), n) * 2,
    "read at its own place": lambda a, n: a.as_strided((2,), (1,)) + n,
    "function": lambda a, n: torch.as_strided(a, (2,), (2,), n) + 1,
    "copy": lambda a, n: torch.as_strided_copy(a, (2,), (1,), n),
    "overlapping": lambda a, n: a.as_strided((2, 2), (1, 1), n) * 2,
    "size": lambda a, n: a.as_strided((n,), (1,), 1) * 2,
    "stride": lambda a, n: a.as_strided((3,), (n,), 1) * 2,
    "of a view": lambda a, n: a[1:].as_strided((2,), (1,), n) * 2,
    "of a flat view": lambda a, n: a.flatten()[1:].as_strided((2,), (1,), n) * 2,
    "of an equal value": lambda a, n: (a * 1).as_strided((3,), (1,), n) * 1,
    "of a clone": lambda a, n: a.clone().as_strided((3,), (1,), n) * 1,
    "of a sum": lambda a, n: (a + 1).as_strided((2, 2), (2, 1), n) * 2,
    "write": lambda a, n: a.as_strided((2,), (1,), n).add_(1),
    "write at its own place": lambda a, n: a.as_strided((2,), (1,)).add_(n),
    "read after a write": lambda a, n: (a.add_(1), a.as_strided((3,), (1,), n) * 1)[1],
    "read after a write to a part": lambda a, n: (a[0].add_(1), a.as_strided((3,), (1,), n) * 1)[1],
    "read after a strided write": lambda a, n: (a.as_strided((3,), (1,), n).mul_(2), a + 1)[1],
    "two writes": lambda a, n: (a.as_strided((3,), (1,), n).mul_(2), a.as_strided((3,), (1,), n + 1).add_(1))[1],
    "scatter": lambda a, n: torch.as_strided_scatter(a, torch.zeros(2), (2,), (1,), n),
    "in place": lambda a, n: a.detach().as_strided_((2,), (1,), n).mul_(2),
    "returned": lambda a, n: a.as_strided((2,), (1,), n),
    "unread": lambda a, n: (a.as_strided((2,), (1,), n), a + 1)[1],
}


def seen(function: Callable, make: Callable[[], torch.Tensor], n: int) -> tuple[Any, Any]:
    """What the function gives, or the kind of what it raises; and the memory afterwards."""
    tensor = make()
    memory = tensor if tensor._base is None else tensor._base
    try:
        return function(tensor, n).tolist(), memory.tolist()
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error), memory.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "dynamic"), [*((n, None) for n in sorted(PROGRAMS)), ("read", True), ("write", True), ("of a sum", True)]
)
def test_memory_is_counted_from_its_start_for_every_input(name, dynamic):
    program = PROGRAMS[name]
    compiled = turret.compile(program, dynamic=dynamic, options={"cache": False})
    for make in LAYOUTS.values():
        for n in (3, 40, -1):
            assert seen(compiled, make, n) == seen(program, make, n)


def placed_eagerly(function: Callable) -> Callable:
    class Nowhere:
        @turret.hookimpl(tryfirst=True)
        def turret_place(self, graph: Any) -> Any:
            calls = [n for n in graph.module.graph.nodes if n.op == "call_function"]
            return Placement({n.name: NodePlacement("eager", "as a test asks for") for n in calls})

    return turret.compile(function, plugins=[Nowhere()], options={"cache": False, "on_error": "raise"})


RUNNERS: dict[str, Callable[[Callable], Callable]] = {
    "kernels": lambda f: turret.compile(f, options={"cache": False}),
    "eager": lambda f: turret.compile(f, backend="eager"),
    "aot_eager": lambda f: turret.compile(f, backend="aot_eager"),
    "function": lambda f: turret.compile(f, backend=lambda module, inputs: module),
    "placed eagerly": placed_eagerly,
}

SHARED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "write to a part": lambda x, part: (part.sub_(part), x * 2)[1],
    "write to both": lambda x, part: (x.add_(1), part.mul_(3), x.flip(0), part + 1)[2:],
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", SHARED)
def test_inputs_in_one_memory_may_lie_anywhere_in_it_whatever_runs_the_graph(name: str, runner: str) -> None:
    compiled, program = RUNNERS[runner](SHARED[name]), SHARED[name]
    for begin in (0, 5, 1, 3):
        memories = [torch.arange(20.0), torch.arange(20.0)]
        found, expected = (
            f(memory[begin : begin + 12], memory[begin + 2 : begin + 6])
            for f, memory in zip((compiled, program), memories, strict=True)
        )
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*memories)


VIEWS: dict[str, Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]] = {
    "detached whole": lambda x, part: [part * 2, x.detach()],
    "detached part": lambda x, part: [x * 2, part.detach()],
    "views of both": lambda x, part: [x[1:].detach(), part[:2].detach(), x.view(2, 6), part.view(4, 1)],
    "views of a detached one": lambda x, part: [part + x.sum(), x.detach()[2:5], part.detach().view(2, 2)],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_view_lies_in_the_input_that_it_was_made_of_however_far_another_one_lies(
    name: str, learns: bool, swapped: bool
) -> None:
    def program(first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
        return VIEWS[name](second, first) if swapped else VIEWS[name](first, second)

    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    for begin, within in ((0, 0), (3, 2), (5, 8), (1, 1)):
        memory = torch.arange(20.0).requires_grad_(learns) * 1
        pair = memory[begin : begin + 12], memory[begin + within : begin + within + 4]
        found, expected = (f(*(reversed(pair) if swapped else pair)) for f in (compiled, program))
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.storage_offset() == theirs.storage_offset()
            shared = theirs.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert (mine.data_ptr() == theirs.data_ptr()) == shared
