"""Devices: all that Turret asks of one kind of hardware, as a plugin answers it through the hook ``turret_device``.

CPU and CUDA are two such plugins without privileges.  Nothing else names a device type: a stage asks ``device_for``
what it has to know, and the executor hands a plan to the device that the plan names.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Iterator

import pluggy
import torch

from turret.errors import PluginError
from turret.hooks.device_types import (
    Allocator,
    AttentionCosts,
    ByteCopier,
    Costs,
    Device,
    KernelFamily,
    MakesMany,
    Placed,
    PlanLibrary,
    ProductCosts,
    ProductTime,
    Properties,
    UnknownDevice,
)
from turret.hooks.host import HOST, INDEX_ERROR, OUT_OF_BOUNDS, OUT_OF_RANGE, ZERO_DIVISION
from turret.hooks.plugin_manager import default_manager, first_result, plugin_of
from turret.hooks.registration.blame import blame, claim
from turret.hooks.segments import Segment

__all__ = [
    "HOST",
    "INDEX_ERROR",
    "OUT_OF_BOUNDS",
    "OUT_OF_RANGE",
    "ZERO_DIVISION",
    "Allocator",
    "AttentionCosts",
    "ByteCopier",
    "Costs",
    "Device",
    "KernelFamily",
    "MakesMany",
    "Placed",
    "PlanLibrary",
    "ProductCosts",
    "ProductTime",
    "Properties",
    "Segment",
    "UnknownDevice",
    "allocator",
    "device_for",
    "devices_of",
    "uses_host_kernels",
]


class _Devices:
    """The devices of one set of plugins, each asked for once."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = weakref.ref(manager)
        self._found: dict[str, Device] = {}

    def of_type(self, device_type: str) -> Device:
        found = self._found.get(device_type)
        if found is None:
            found = self._found[device_type] = self._ask(device_type)
        return found

    def _ask(self, device_type: str) -> Device:
        manager = self._manager()
        assert manager is not None  # whoever asks holds it
        try:
            given, plugin = first_result(manager, "turret_device", {"device_type": device_type})
        except Exception as error:
            blame(error, plugin_of(manager, "turret_device", error))
            raise
        if given is None:
            return UnknownDevice(device_type)
        if not isinstance(given, Device) or given.type != device_type:
            raise PluginError(
                f"plugin {plugin!r}: turret_device gave {given!r} for {device_type!r}; expected a "
                "turret.hooks.devices.Device of that type"
            )
        claim(given, plugin)
        return given


_of_managers: weakref.WeakKeyDictionary[pluggy.PluginManager, _Devices] = weakref.WeakKeyDictionary()
_in_use: contextvars.ContextVar[_Devices | None] = contextvars.ContextVar("turret_devices", default=None)


def _devices_of(manager: pluggy.PluginManager) -> _Devices:
    found = _of_managers.get(manager)
    if found is None:
        found = _of_managers[manager] = _Devices(manager)
    return found


@contextlib.contextmanager
def devices_of(manager: pluggy.PluginManager) -> Iterator[None]:
    """Within it ``device_for`` asks these plugins, and not the default ones."""
    token = _in_use.set(_devices_of(manager))
    try:
        yield
    finally:
        _in_use.reset(token)


def device_for(device_type: str) -> Device:
    """The device of a type: a plugin's, of the compilation under way if there is one, or ``UnknownDevice``."""
    devices = _in_use.get()
    if devices is None:
        devices = _devices_of(default_manager())
    return devices.of_type(device_type)


def uses_host_kernels(device: torch.device) -> bool:
    """Whether eager's results on a device are those of ATen's kernels for the CPU."""
    return device_for(device.type).eager_kernels is KernelFamily.HOST


def allocator(device: torch.device) -> Allocator:
    """``empty(shape, stride, dtype)``: an uninitialised tensor on a device, in order of the current stream."""
    return device_for(device.type).allocator(device)
