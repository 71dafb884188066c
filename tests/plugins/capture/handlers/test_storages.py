"""How large the memory of a tensor is, asked of one that existed before."""

from __future__ import annotations

import pytest
import torch

import turret

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


def freed(x, y):
    doubled = x * 2
    x.untyped_storage().resize_(0)
    return doubled


@pytest.mark.filterwarnings("ignore::turret.TurretWarning")
@pytest.mark.parametrize("program", (moved, moved_since, resized, shared, freed))
def test_memory_that_is_not_as_it_was_is_asked_in_python(program):
    def run(function, share):
        base = torch.arange(6.0)
        x, y = (base[:3], base[2:]) if share and program is not freed else (base, torch.arange(7.0))
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
