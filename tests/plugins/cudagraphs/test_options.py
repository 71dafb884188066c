"""Options of graph capture."""

from __future__ import annotations

import pytest

from turret.hooks import plugin_manager


@pytest.mark.parametrize(
    ("mode", "on"),
    [(None, False), ("default", False), ("reduce-overhead", True), ("max-autotune", True),
     ("max-autotune-no-cudagraphs", False)],
)  # fmt: skip
def test_modes_turn_recording_on(mode, on):
    assert plugin_manager.configure(plugin_manager.default_manager(), mode).cudagraphs is on


def test_all_options_are_those_of_one_plugin():
    declared = plugin_manager.default_manager().options
    names = {name for name in declared if name.startswith("cudagraph")}
    assert {declared[name].plugin for name in names} == {"turret.plugins.cudagraphs"} and len(names) == 12
