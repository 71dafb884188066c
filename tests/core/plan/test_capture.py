"""Plans say what keeps them from being recorded."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import distributed as dist

from tests.core.plan.section_lab import Recording
from turret.graph.obstacles import Obstacle
from turret.hooks import plugin_manager
from turret.hooks.devices import devices_of
from turret.hooks.size_source import Binding, SizeSource
from turret.plan import Call, Compute, Plan, Section, Slot, SlotRef
from turret.plan.capture import capture_obstacles


@pytest.fixture(autouse=True)
def recording():
    with devices_of(plugin_manager.create((Recording(),))):
        yield


def plan(op: str) -> Plan:
    slots = tuple(Slot(name, (4,), (1,), "float32", "cpu", "call") for name in "xy")
    return Plan("p", "cpu", slots, (0,), (Call(op, (SlotRef(0),), {}, (1,)),), (SlotRef(1),))


def test_kernels_and_library_calls_are_recorded() -> None:
    assert capture_obstacles(plan("aten::clone.default")) == ()


def test_calls_that_wait_for_the_device_are_named() -> None:
    (obstacle,) = capture_obstacles(plan("aten::nonzero.default"))
    assert obstacle == "aten::nonzero.default makes a tensor whose size depends on data"


def test_an_index_is_no_obstacle_and_a_mask_is() -> None:
    def indexed(dtype: str) -> Plan:
        slots = (*plan("").slots, Slot("i", (4,), (1,), dtype, "cpu", "input", 1))
        call = Call("aten::index.Tensor", (SlotRef(0), [SlotRef(2)]), {}, (1,))
        return Plan("p", "cpu", slots, (0, 2), (call,), (SlotRef(1),))

    assert capture_obstacles(indexed("int64")) == ()
    assert "mask" in capture_obstacles(indexed("bool"))[0]


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_a_collective_is_recorded_with_the_wait_for_it_or_not_at_all() -> None:
    slots = tuple(Slot(name, (4,), (1,), "float32", "cpu", "call") for name in "xyz")
    begin = Call("_c10d_functional::all_reduce.default", (SlotRef(0), "sum", "0"), {}, (1,))
    wait = Call("_c10d_functional::wait_tensor.default", (SlotRef(1),), {}, (2,))

    def obstacles(*steps: Call) -> tuple[str, ...]:
        given = Plan("p", "cpu", slots, (0,), steps, (SlotRef(0),))
        assert all("cudagraph_collectives" in text for text in capture_obstacles(given)[: len(steps)])
        return capture_obstacles(given, collectives=True)

    assert obstacles(begin, wait) == ()
    assert obstacles(begin) == ("a collective is begun, which is waited for elsewhere",)
    assert obstacles(wait) == ("_c10d_functional::wait_tensor.default waits for what was begun elsewhere",)


def test_tensors_of_other_devices_and_plans_for_those_that_do_not_record_are_named() -> None:
    given = plan("aten::clone.default")
    mixed = attrs.evolve(given, slots=(attrs.evolve(given.slots[0], device="meta"), given.slots[1]))
    assert capture_obstacles(mixed) == ("x is a tensor on meta",)
    assert capture_obstacles(attrs.evolve(given, device="meta")) == ("p runs on meta, which records no launches",)
    with devices_of(plugin_manager.default_manager()):
        assert capture_obstacles(given) == ("p runs on cpu, which records no launches",)


def test_numbers_that_depend_on_data_keep_a_plan_from_being_recorded() -> None:
    given = plan("aten::clone.default")
    bound = attrs.evolve(given.steps[0], symbol_bindings=(Binding("u0", 0, None),))
    numbers = (bound, Compute("c0", "u0 + s0"), Compute("c1", "-(-s0//32)"))
    dynamic = attrs.evolve(given, size_symbols=("s0", "u0", "c0", "c1"), size_sources={"s0": SizeSource(0, 0)})
    assert capture_obstacles(attrs.evolve(dynamic, steps=numbers)) == ("c0, u0 depend on data",)


def test_numbers_that_are_computed_from_sizes_are_recorded_with_them() -> None:
    given = plan("aten::clone.default")
    dynamic = attrs.evolve(given, size_symbols=("s0", "c1"), size_sources={"s0": SizeSource(0, 0)})
    assert capture_obstacles(attrs.evolve(dynamic, steps=(Compute("c1", "-(-s0//32)"), *given.steps))) == ()


def test_dynamic_graphs_are_recorded_unless_the_option_says_not_to() -> None:
    given = attrs.evolve(plan("aten::clone.default"), size_symbols=("s0",), size_sources={"s0": SizeSource(0, 0)})
    assert capture_obstacles(given) == ()
    (obstacle,) = capture_obstacles(given, skip_dynamic=True)
    assert obstacle == "p has dynamic sizes (s0), and cudagraph_skip_dynamic_graphs is set"


def test_a_plan_that_is_cut_is_recorded_unless_all_of_it_is_left_out() -> None:
    given = attrs.evolve(plan("aten::nonzero.default"), steps=plan("aten::nonzero.default").steps * 2)
    obstacle = Obstacle("aten::nonzero", "waits", "f.py:1: x")
    assert capture_obstacles(attrs.evolve(given, sections=(Section(0, 0), Section(1, 1, (obstacle,))))) == ()
    assert capture_obstacles(attrs.evolve(given, sections=(Section(0, 1, (obstacle,)),))) == (str(obstacle),)


def test_a_plan_without_steps_has_nothing_to_record() -> None:
    assert capture_obstacles(attrs.evolve(plan("aten::clone.default"), steps=())) == ("p has nothing to record",)


def test_deterministic_scatters_are_named() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic" in capture_obstacles(plan("aten::index_put.default"))[0]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("shape", "obstacles"), [((), ()), ((3,), ("c is a tensor on cpu",))])
def test_a_constant_number_of_the_host_is_no_obstacle_and_a_constant_vector_is(shape: tuple, obstacles: tuple) -> None:
    given, plugin = plan("aten::clone.default"), Recording()
    plugin.device.type = "meta"
    slots = [attrs.evolve(slot, device="meta") for slot in given.slots]
    constant = Slot("c", shape, (1,) * len(shape), "float32", "cpu", "constant")
    with devices_of(plugin_manager.create((plugin,))):
        assert capture_obstacles(attrs.evolve(given, device="meta", slots=(*slots, constant))) == obstacles
