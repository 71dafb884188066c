"""Generated code of graphs: numbers in it are those of the graph."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import turret
from turret.storage.source_lines import ExactNumbers, new_graph_module

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e-28, 1e28])


def parts(number):
    """What tells complex numbers apart: NaN is itself, zeros have signs."""
    return repr(number.real), repr(number.imag)


@given(numbers=st.lists(st.builds(complex, NUMBERS, NUMBERS), min_size=1, max_size=3))
def test_complex_numbers_in_generated_code_are_those_of_the_graph(numbers):
    graph = fx.Graph()
    seen = []

    def see(listed, named):
        seen.extend([*listed, named["last"]])

    graph.call_function(see, (numbers,), {"named": {"last": numbers[-1]}})
    graph.output(())
    module = new_graph_module(torch.nn.Module(), graph)
    for _ in range(2):
        module()
        assert [*map(parts, seen)] == [*map(parts, [*numbers, numbers[-1]])]
        seen.clear()
        module.recompile()
    (call,) = graph.find_nodes(op="call_function", target=see)
    assert all(type(n) is complex for n in call.args[0])


class _Listed(ExactNumbers):
    """Code that takes all inputs as one list."""

    def gen_fn_def(self, free_vars, *args, **options):
        names = [name.partition(":")[0].strip() for name in free_vars if name != "self"]
        return f"def forward(self, listed):\n    {', '.join(names)}, = listed"


def test_code_that_is_generated_in_another_way_stays_so_beside_complex_numbers():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.mul, (x, complex(0.0, -1.0))),))
    graph.set_codegen(_Listed())
    (found,) = new_graph_module(torch.nn.Module(), graph)([torch.ones(2)])
    assert torch.equal(found, torch.ones(2) * complex(0.0, -1.0))


class _NoJoint:
    cache_key = "no joint"

    @turret.hookimpl(tryfirst=True)
    def turret_joint(self):
        raise RuntimeError("no trace")


def test_graphs_that_run_eagerly_have_the_programs_complex_numbers(recwarn):
    def program(x):
        return torch.tensor([complex(-0.0, -1.0)]).real.signbit(), x * complex(1.0, math.nan)

    x = torch.ones(2, dtype=torch.complex64)
    fast = turret.compile(program, plugins=[_NoJoint()], options={"on_error": "fallback", "cache": False})
    negative, product = fast(x)
    assert negative.item() and product.imag.isnan().all() and torch.equal(product.isnan(), program(x)[1].isnan())
    assert not any("runs as Python" in str(w.message) for w in recwarn)
