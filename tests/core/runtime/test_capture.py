"""Plans say what keeps them from being recorded."""

from __future__ import annotations

import attrs

from turret.plan import Call, Plan, Slot, SlotRef
from turret.runtime.capture import capture_obstacles


def plan(op: str) -> Plan:
    slots = tuple(Slot(name, (4,), (1,), "float32", "cuda:0", "call") for name in "xy")
    return Plan("p", "cuda:0", slots, (0,), (Call(op, (SlotRef(0),), {}, (1,)),), (SlotRef(1),))


def test_kernels_and_library_calls_are_recorded() -> None:
    assert capture_obstacles(plan("aten::clone.default")) == ()


def test_calls_that_wait_for_the_device_are_named() -> None:
    assert capture_obstacles(plan("aten::nonzero.default")) == ("aten::nonzero.default waits for values of the device",)


def test_tensors_of_the_cpu_and_plans_for_it_are_named() -> None:
    given = plan("aten::clone.default")
    mixed = attrs.evolve(given, slots=(attrs.evolve(given.slots[0], device="cpu"), given.slots[1]))
    assert capture_obstacles(mixed) == ("x is a tensor on cpu",)
    assert capture_obstacles(attrs.evolve(given, device="cpu")) == ("the plan runs on cpu, which queues nothing",)


def test_numbers_that_depend_on_data_keep_a_plan_from_being_recorded() -> None:
    given = plan("aten::clone.default")
    assert capture_obstacles(attrs.evolve(given, size_symbols=("u0",))) == ("u0 depend on data",)
