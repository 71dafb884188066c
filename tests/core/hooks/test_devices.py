"""Devices are found by the hook ``turret_device``; what nobody knows runs call by call; no other room names one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import turret
from turret.errors import CacheError, CodegenError, PluginError
from turret.frames.trace_modes import AUTOCAST_DEVICES, autocast_state, set_autocast_state
from turret.hooks import plugin_manager
from turret.hooks.devices import HOST, Device, PlanLibrary, Properties, UnknownDevice, device_for, devices_of
from turret.plan import Plan
from turret.plan.executor import load
from turret.plan.modes import below_autograd
from turret.storage.libraries import Library

ROOT = Path(__file__).parents[3]


class Watched(type(device_for(HOST.type))):
    """The CPU, with a record of what is asked of it."""

    def __init__(self) -> None:
        self.loaded: list[Plan] = []

    def properties(self, index: int) -> Properties:
        return Properties("a board", "board9", cores=3, memory=5)

    def load(self, plan: Plan, store: Any) -> PlanLibrary:
        self.loaded.append(plan)
        return super().load(plan, store)


class Replaces:
    """Plugin: a CPU of an outsider's; ``targets`` collects what code was generated for."""

    def __init__(self, device: Any) -> None:
        self.device, self.targets = device, []

    @turret.hookimpl
    def turret_device(self, device_type: str) -> Any:
        return self.device if device_type == HOST.type else None

    @turret.hookimpl
    def turret_codegen(self, target: Any) -> None:
        self.targets.append(target)


def test_an_outsider_s_device_loads_the_plans_of_its_type() -> None:
    plugin = Replaces(Watched())
    x = torch.randn(4)
    compiled = turret.compile(lambda x: x.sin() + 1, plugins=[plugin], options={"on_error": "raise"})
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    (plan,), (target,) = plugin.device.loaded, plugin.targets
    assert plan.arch == target.arch == "board9" and (target.cores, target.memory) == (3, 5)
    turret.compile(lambda x: x.sin() + 2, options={"on_error": "raise"})(x)
    assert len(plugin.device.loaded) == 1  # it holds for the callable that it was given to


def test_what_is_no_device_of_the_type_is_refused() -> None:
    for wrong in ("a board", Watched, device_for("cuda")):
        manager = plugin_manager.create((Replaces(wrong),))
        with (
            devices_of(manager),
            pytest.raises(PluginError, match=r"turret_device gave .* a turret.hooks.devices"),
        ):
            device_for(HOST.type)


def test_a_device_is_asked_for_once_and_for_the_plugins_in_use() -> None:
    manager = plugin_manager.create((Replaces(Watched()),))
    with devices_of(manager):
        assert device_for(HOST.type).properties(0).arch == "board9"
    assert device_for(HOST.type).properties(0).arch != "board9"
    assert device_for(HOST.type) is device_for(HOST.type)


def test_a_device_that_nobody_knows_has_no_kernels() -> None:
    found = device_for("vulkan")
    assert isinstance(found, UnknownDevice) and not found.kernel_languages and found.properties(0) == Properties()
    with pytest.raises(CodegenError, match=r"no plugin runs kernels on vulkan.*turret_device"):
        found.load(attrs.evolve(EMPTY, library=Library("k", "f")), None)


EMPTY = Plan("p", HOST.type, (), (), (), ())


def test_a_plan_for_another_architecture_is_not_loaded() -> None:
    plan = attrs.evolve(EMPTY, library=Library("0" * 64, "kernels.so"), arch="board9")
    with pytest.raises(CacheError, match="compiled for board9, which cpu is not"):
        load(plan)


def test_a_plan_with_scratch_memory_is_refused_where_arenas_are_kept() -> None:
    with pytest.raises(CodegenError, match="scratch memory"):
        load(attrs.evolve(EMPTY, scratch_bytes=64))


def test_devices_are_named_in_their_rooms_alone() -> None:
    quoted = re.compile(r"""["'](cpu|cuda|xpu|mps|hpu)["']""")
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("core", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != ROOT / "plugins" / "devices"
        for line in path.read_text().splitlines()
        if quoted.search(line)
    }
    assert found == {'core/hooks/host.py: HOST = torch.device("cpu")'}


# ---------------------------------------------------------------- a device without kernels


def _training(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sum(-1)


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:].add_(1)
    return x.t() @ x


def _several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.split(2, dim=-1)
    return a, torch.cat([b, b]), torch.nn.functional.layer_norm(x, (4,)), w.t(), torch.zeros_like(x)


def _made(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.arange(4, device=x.device) * x + torch.ones(4, device=x.device)


def _dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) @ w


def _losses(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    target = torch.zeros(3, dtype=torch.int64, device=x.device)
    rows, sign = (x @ w), torch.ones(3, device=x.device)
    kinds = ("none", "mean", "sum")
    crosses = [torch.nn.functional.cross_entropy(rows, target, reduction=kind) for kind in kinds]
    margins = [torch.nn.functional.margin_ranking_loss(x[:, 0], x[:, 1], sign, reduction=kind) for kind in kinds]
    hinges = [torch.nn.functional.hinge_embedding_loss(x[:, 0], sign, reduction=kind) for kind in kinds]
    return (*crosses, *margins, *hinges)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_training, _written, _several, _made, _dropped, _losses])
def test_meta_tensors_come_out_as_eager_s(program: Callable, dynamic: bool) -> None:
    def run(function: Callable) -> tuple:
        x, w = torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta", requires_grad=True)
        found = function(x, w)
        found = found if isinstance(found, tuple) else (found,)
        trained = [value.sum() for value in found if value.requires_grad and value.grad_fn is not None]
        if trained:
            torch.stack(trained).sum().backward()
        facts = [(v.shape, v.stride(), v.dtype, v.device, v.requires_grad) for v in found]
        return facts, None if w.grad is None else (w.grad.shape, w.grad.device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", turret.TurretWarning)
        compiled = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
        assert run(compiled) == run(program)


def test_it_is_said_that_graphs_on_such_a_device_run_call_by_call() -> None:
    compiled = turret.compile(lambda x: x.sin() + 1, options={"on_error": "raise", "cache": False})
    with pytest.warns(turret.TurretWarning, match="device type meta: graphs on it run call by call"):
        compiled(torch.empty(3, device="meta"))


# ---------------------------------------------------------------- autocast


def test_a_plan_casts_nothing_on_any_device() -> None:
    with torch.autocast(HOST.type):
        with below_autograd():
            left = torch._C._dispatch_tls_local_exclude_set()
            keys = [k for name, k in torch._C.DispatchKey.__members__.items() if name.startswith("Autocast")]
            assert len(keys) > 2 and all(left.has(key) for key in keys)
        assert torch.is_autocast_enabled(HOST.type)


@given(
    outer=st.dictionaries(
        st.sampled_from(AUTOCAST_DEVICES), st.sampled_from([torch.bfloat16, torch.float16]), max_size=3
    ),
    inner=st.sampled_from(AUTOCAST_DEVICES),
)
def test_autocast_of_any_device_is_seen_and_restored(outer: dict[str, torch.dtype], inner: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        before = torch.is_autocast_enabled(inner)
        torch.set_autocast_enabled(inner, not before)
        result = x @ x
        torch.set_autocast_enabled(inner, before)
        return result + x @ x

    compiled, x = turret.compile(program, options={"on_error": "raise", "cache": False}), torch.randn(4, 4)
    state = autocast_state()
    try:
        for kind, dtype in outer.items():
            torch.set_autocast_enabled(kind, True)
            torch.set_autocast_dtype(kind, dtype)
        set_to = autocast_state()
        found, expected = compiled(x), program(x)
        assert found.dtype is expected.dtype and autocast_state() == set_to
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    finally:
        set_autocast_state(state)


def test_every_built_in_device_is_a_plugin() -> None:
    hooks = dict(plugin_manager.describe(plugin_manager.default_manager()))["turret_device"]
    assert {Path(file).name for _, file in hooks} == {"cpu.py", "cuda.py"}
    assert all(issubclass(type(device_for(Path(file).stem)), Device) for _, file in hooks)
