"""Plugins have names that a person recognises in an error message."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.errors import PluginError, StageError


class Fails:
    @turret.hookimpl
    def turret_schedule(self, program):
        raise ValueError("no schedule today")


@pytest.mark.parametrize("count, name", [(1, "test_plugin_names.Fails"), (2, "test_plugin_names.Fails 2")])
def test_a_failing_plugin_object_is_named_by_its_class(count, name):
    function = turret.compile(torch.sin, plugins=[Fails() for _ in range(count)], options={"on_error": "raise"})
    with pytest.raises(Exception) as caught:
        function(torch.ones(3))
    found = caught.value
    while not isinstance(found, StageError):
        found = found.__cause__ or found.__context__
    assert found.plugin.endswith(name)


def test_a_plugin_given_twice_is_named():
    with pytest.raises(PluginError, match=r"turret.plugins.observers.logs.*is given twice"):
        turret.compile(torch.sin, plugins=["turret.plugins.observers.logs"])
