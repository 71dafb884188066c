"""How large the memory of a tensor is, asked of one that existed before, and memory that is let go of."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.errors import CaptureError

OPTIONS = {"on_error": "raise", "cache": False, "recompile_limit": 64}


def of_elements(x, y):
    return x + 1 if x.untyped_storage().size() // x.element_size() == 6 else x - 1


def of_bytes(x, y):
    return x * len(x.untyped_storage()) + y.untyped_storage().nbytes()


def handed_back(x, y):
    return x + 1, x.untyped_storage()


def emptied(x, y):
    return x * (2 if x.untyped_storage() else 3)


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("program", (of_elements, of_bytes, handed_back, emptied))
def test_the_size_of_memory_is_known_in_the_graph(program, dynamic):
    fast = turret.compile(program, fullgraph=True, dynamic=dynamic, options=OPTIONS)
    for size in (6, 4, 9, 0, 6):
        base = torch.arange(float(size))
        for x in (base, base[1:], base.view(-1, 2) if size % 2 == 0 else base):
            found, expected = fast(x, base), program(x, base)
            if isinstance(found, tuple):
                assert found[1] is expected[1] is x.untyped_storage()
                found, expected = found[0], expected[0]
            torch.testing.assert_close(found, expected)


def moved(x, y):
    x.data = y
    return x * x.untyped_storage().size()


def moved_since(x, y):
    memory = x.untyped_storage()
    x.data = y
    return x * memory.size(), memory


def resized(x, y):
    x.resize_(2)
    return x.untyped_storage().size() + y


def shared(x, y):
    return y * (2 if x.untyped_storage() is y.untyped_storage() else 3)


def freed_and_filled(x, y):
    doubled, bytes = x * 2, x.untyped_storage().size()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(bytes)
    x.copy_(doubled)
    return doubled


@pytest.mark.filterwarnings("ignore::turret.TurretWarning")
@pytest.mark.parametrize("program", (moved, moved_since, resized, shared, freed_and_filled))
def test_memory_that_is_not_as_it_was_is_asked_in_python(program):
    def run(function, share):
        base = torch.arange(6.0)
        x, y = (base[:3], base[2:]) if share and program is not freed_and_filled else (base, torch.arange(7.0))
        made = function(x, y)
        sizes = x.untyped_storage().size(), y.untyped_storage().size()
        return [
            *(v if isinstance(v, torch.Tensor) else v.size() for v in (made if type(made) is tuple else [made])),
            *sizes,
        ]

    fast = turret.compile(program, options={"cache": False})
    for share in (False, True, False):
        torch.testing.assert_close(run(fast, share), run(program, share))


def test_the_device_of_memory_is_known_in_the_graph():
    fast = turret.compile(lambda x: (x + 1, x.untyped_storage().device), fullgraph=True, options=OPTIONS)
    assert fast(torch.ones(2))[1] == torch.device("cpu")


def test_the_bytes_of_a_tensor_are_known_whatever_its_sizes():
    fast = turret.compile(lambda x: (x + x.nbytes, x.nbytes), fullgraph=True, dynamic=True, options=OPTIONS)
    for x in (torch.ones(3, 4), torch.ones(5, 6), torch.ones(2, 0)):
        torch.testing.assert_close(fast(x), (x + x.nbytes, x.nbytes))


def freed(x):
    doubled, memory = x * 2, x.untyped_storage()
    memory.resize_(0)
    return doubled + 1, memory


def freed_behind_a_write(x):
    memory = x.untyped_storage()
    x.add_(1)
    doubled = x * 2
    memory.resize_(0)
    return doubled


def freed_by_and_by(x):
    sizes = [x.untyped_storage().resize_(n).size() for n in (16, 16, 8)]
    return x.shape, sizes, len(x.untyped_storage()), x.untyped_storage().nbytes()


def freed_behind_a_view(x):
    part = x[1:]
    doubled = part * 2
    x.untyped_storage().resize_(0)
    return doubled, part, x


def freed_and_given_other_data(x):
    doubled = x * 2
    x.untyped_storage().resize_(0)
    x.data = doubled + 1
    return doubled, x.sum()


def shown(value, x):
    """A result as what compares equal; elements of what has memory, and whether it is ``x`` or a view of it."""
    if isinstance(value, torch.UntypedStorage):
        return value is x.untyped_storage(), value.size()
    if isinstance(value, torch.Tensor):
        elements = value.tolist() if value.untyped_storage().size() > value.storage_offset() * 4 else None
        return value is x, value._base is x, value.shape, elements
    return [shown(v, x) for v in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize(
    "program", (freed, freed_behind_a_write, freed_by_and_by, freed_behind_a_view, freed_and_given_other_data)
)
def test_memory_is_let_go_of_behind_the_graph(program):
    def run(function):
        x = torch.arange(6.0)
        return [shown(v, x) for v in (function(x), x.untyped_storage())]

    fast = turret.compile(program, fullgraph=True, options=OPTIONS)
    for _ in range(2):
        expected = run(program)
        assert run(fast) == expected


def used_afterwards(x):
    doubled = x * 2
    x.untyped_storage().resize_(16)
    return doubled[:4] + x[:4]


def freed_on_a_path(x):
    doubled = x * 2
    if doubled.sum() > 0:
        x.untyped_storage().resize_(0)
    return doubled + 1


@pytest.mark.parametrize("program", (used_afterwards, freed_on_a_path))
def test_memory_that_the_graph_cannot_let_go_of_is_let_go_of_by_python(program):
    with pytest.raises(CaptureError, match="UntypedStorage"):
        turret.compile(program, fullgraph=True, options=OPTIONS)(torch.arange(6.0))
    x, y = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(turret.compile(program, options=OPTIONS)(x), program(y))
    assert x.untyped_storage().size() == y.untyped_storage().size()


def test_memory_that_a_backward_may_look_at_is_let_go_of_by_python():
    program = lambda x: (x.exp(), x.untyped_storage().resize_(0))[0]  # noqa: E731
    with pytest.raises(CaptureError, match="where a backward may look at the memory"):
        turret.compile(program, fullgraph=True, options=OPTIONS)(torch.ones(3, requires_grad=True))
    x = torch.ones(3, requires_grad=True)
    turret.compile(program, options=OPTIONS)(x).sum().backward()  # whose formula reads the result alone
    torch.testing.assert_close(x.grad, torch.ones(3).exp())
    with torch.no_grad():
        assert turret.compile(program, fullgraph=True, options=OPTIONS)(torch.ones(3, requires_grad=True)).sum() > 8
