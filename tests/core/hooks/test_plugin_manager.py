"""Plugins: found, checked against the hooks, asked in the promised order, and described."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import weakref

import attrs
import pytest
import torch

import turret
from turret.errors import PluginError
from turret.hooks import plugin_manager
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.usefixtures("fresh")


def names(manager, hook):
    return [name for name, _ in dict(plugin_manager.describe(manager))[hook]]


class Partition:
    @hookimpl
    def turret_partition(self):
        return None


def test_every_built_in_is_registered_once_and_every_hook_described():
    table = plugin_manager.describe(plugin_manager.create())
    assert {name for _, rows in table for name, _ in rows} == set(plugin_manager.BUILTINS)
    assert [hook for hook, _ in table] == [n for n in vars(turret.hooks.hookspecs) if n.startswith("turret_")]
    assert all(file.endswith(".py") for _, rows in table for _, file in rows)


def test_the_last_one_given_is_asked_first():
    class Other(Partition):
        pass

    order = names(plugin_manager.create((Partition(), Other())), "turret_partition")
    assert [name.rpartition(".")[2] for name in order] == ["Other", "Partition", "partition"]


def test_two_of_one_class_have_names_of_their_own():
    order = names(plugin_manager.create((Partition(), Partition())), "turret_partition")
    assert len(set(order)) == 3


class Busy:
    """A plugin with hooks of every kind beside attributes that are not to be read."""

    seen: list[str]

    def __init__(self):
        self.seen = []

    @property
    def turret_property(self):
        self.seen.append("turret_property")
        raise RuntimeError("a property was read")

    @property
    def costly(self):
        self.seen.append("costly")

    @functools.cached_property
    def table(self):
        self.seen.append("table")

    @hookimpl
    def turret_partition(self):
        return None

    @staticmethod
    @hookimpl
    def turret_place():
        return None

    @classmethod
    @hookimpl
    def turret_schedule(cls):
        return None

    @hookimpl(specname="turret_joint")
    def trace(self):
        return None


def test_no_property_of_a_plugin_is_read_while_it_is_registered():
    plugin = Busy()
    manager = plugin_manager.create((plugin,))
    assert plugin.seen == []
    for hook in ("turret_partition", "turret_place", "turret_schedule", "turret_joint"):
        assert names(manager, hook)[0].endswith("Busy")


def test_the_same_object_twice_is_refused():
    plugin = Partition()
    with pytest.raises(PluginError, match="given twice"):
        plugin_manager.create((plugin, plugin))


def test_a_hook_that_does_not_exist_leads_to_the_nearest():
    class Wrong:
        @hookimpl
        def turret_partitoin(self):
            return None

    with pytest.raises(PluginError, match=r"no such hook; did you mean 'turret_partition'\?"):
        plugin_manager.create((Wrong(),))


def test_an_argument_that_the_hook_lacks_is_refused():
    class Wrong:
        @hookimpl
        def turret_partition(self, joint, colour):
            return None

    with pytest.raises(PluginError, match=r"(?s)does not fit its hook.*colour"):
        plugin_manager.create((Wrong(),))


@pytest.mark.parametrize("name", ["no.such.module", "turret.plugins.observers.logs:nothing", "", "turret."])
def test_dotted_names_that_lead_nowhere_are_refused(name):
    with pytest.raises(PluginError, match="no plugin"):
        plugin_manager.create((name,))


def test_installed_plugins_are_found_by_entry_point(monkeypatch):
    point = importlib.metadata.EntryPoint("installed", "turret_test_installed:plugin", "turret.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "turret.plugins" else [])
    plugin_manager._entry_points.cache_clear()
    try:
        with pytest.raises(PluginError, match=r"plugin installed \(turret_test_installed:plugin\) does not load"):
            plugin_manager.create()
        monkeypatch.setattr(type(point), "load", lambda self: Partition())
        assert names(plugin_manager.create(), "turret_partition")[0] == "installed"
    finally:
        plugin_manager._entry_points.cache_clear()


def test_a_decomposition_from_outside_can_be_taken_back_by_a_keep():
    class Decompose:
        @hookimpl
        def turret_decompositions(self):
            return {torch.ops.aten.tanh.default: lambda x: x * 0}

    class Keep:
        @hookimpl
        def turret_decompositions(self):
            return {torch.ops.aten.tanh.default: None}

    x = torch.randn(3, 5)
    for plugins in ([Decompose(), Keep()], [Keep(), Decompose()]):
        torch.testing.assert_close(turret.compile(torch.tanh, plugins=plugins)(x), torch.tanh(x))


def test_products_are_frozen():
    class Look:
        @hookimpl
        def turret_partition(self, joint):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                joint.name = "mine"

    turret.compile(torch.sin, plugins=[Look()])(torch.ones(2))


def test_the_frames_of_a_failed_compilation_end_with_it():
    class Kept:
        pass

    def call(compiled, x):
        kept = Kept()
        try:
            compiled(x, -1)
        except RuntimeError:
            return weakref.ref(kept)

    options = {"on_error": "fallback"}
    compiled = turret.compile(
        lambda x, n: torch.slice_scatter(x, x.narrow(0, 0, 1), 0, n, n + 1), fullgraph=True, options=options
    )
    x = torch.rand(1, 7)
    compiled(x, 0)
    gc.collect()
    gc.disable()
    try:
        with pytest.warns(turret.TurretWarning, match="eager refuses"):
            assert call(compiled, x)() is None
    finally:
        gc.enable()
