"""Guard filters say which assumptions of captured code are checked; those written for torch.compile work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import turret
from turret.errors import CaptureError
from turret.hooks.hookspecs import hookimpl

OWN = {"capture": "turret", "cache": False, "on_error": "raise"}

with_each_capture = pytest.mark.parametrize("options", [OWN, {**OWN, "capture": "dynamo"}], ids=["own", "dynamo"])


class Setting:
    def __init__(self):
        self.factor = 2


SETTING = Setting()


@pytest.fixture(autouse=True)
def setting():
    SETTING.factor = 2
    yield SETTING
    SETTING.factor = 2


def scaled(x):
    return torch.sin(x) * SETTING.factor


def without_setting(guards):
    return ["SETTING" not in guard.name for guard in guards]


@with_each_capture
@pytest.mark.parametrize("how", ["option", "hook"])
def test_a_filtered_guard_is_not_checked(setting, how, options):
    class Filter:
        @hookimpl
        def turret_guard_filter(self, context, guards):
            return without_setting(guards)

    asked = {"guard_filter_fn": without_setting} if how == "option" else {}
    x = torch.randn(3)
    filtered = turret.compile(scaled, options=options | asked, plugins=[Filter()] if how == "hook" else [])
    checked = turret.compile(scaled, options=options)
    for function in (filtered, checked):
        torch.testing.assert_close(function(x), torch.sin(x) * 2)
    setting.factor = 3
    torch.testing.assert_close(filtered(x), torch.sin(x) * 2)
    torch.testing.assert_close(checked(x), torch.sin(x) * 3)


@with_each_capture
def test_all_filters_must_say_keep(setting, options):
    class KeepAll:
        @hookimpl
        def turret_guard_filter(self, guards):
            return [True] * len(guards)

    class NoOpinion:
        @hookimpl
        def turret_guard_filter(self):
            return None

    x = torch.randn(3)
    options = options | {"guard_filter_fn": without_setting}
    compiled = turret.compile(scaled, plugins=[KeepAll(), NoOpinion()], options=options)
    compiled(x)
    setting.factor = 3
    torch.testing.assert_close(compiled(x), torch.sin(x) * 2)


def test_a_filter_that_answers_for_too_few_is_an_error():
    with pytest.raises(CaptureError, match="answered for 1 guards"):
        turret.compile(scaled, options={**OWN, "guard_filter_fn": lambda guards: [True]})(torch.randn(3))


def compiled_with(model, keep, options=OWN):
    return turret.compile(model, options={**options, "guard_filter_fn": keep})


@with_each_capture
def test_torch_s_filter_of_tensor_guards_is_taken(setting, options):
    compiled = compiled_with(scaled, torch.compiler.keep_tensor_guards_unsafe, options)
    x = torch.randn(3)
    compiled(x)
    setting.factor = 3
    torch.testing.assert_close(compiled(x), torch.sin(x) * 2)
    torch.testing.assert_close(compiled(torch.ones(2, 2)), torch.sin(torch.ones(2, 2)) * 3)


def test_torch_s_filter_of_globals_is_taken(setting):
    def calls(x, factor):
        return torch.sin(x) * SETTING.factor * factor

    compiled = compiled_with(calls, torch.compiler.skip_guard_on_globals_unsafe)
    x = torch.randn(3)
    compiled(x, 1)
    setting.factor = 3
    torch.testing.assert_close(compiled(x, 1), torch.sin(x) * 2)
    torch.testing.assert_close(compiled(x, 5), torch.sin(x) * 15)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.factor = nn.Dropout(0.5), 2

    def forward(self, x):
        return self.drop(x) * self.factor


@pytest.mark.parametrize(
    ("keep", "sees_factor", "sees_dropout"),
    [
        (torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe, True, False),
        (torch.compiler.skip_guard_on_all_nn_modules_unsafe, False, False),
        (lambda guards: [True] * len(guards), True, True),
    ],
)
def test_torch_s_filters_of_modules_tell_builtin_ones_apart(keep, sees_factor, sees_dropout):
    module, x = Scale().eval(), torch.ones(100)
    compiled = compiled_with(module, keep)
    assert compiled(x).eq(2).all()
    module.factor = 3
    assert compiled(x).eq(3 if sees_factor else 2).all()
    module.drop.p = 1.0
    module.drop.training = True
    assert compiled(x).eq(0).all() == sees_dropout


def test_printed_guards_hold_no_whole_namespaces():
    printed = []

    class Watch:
        @hookimpl
        def turret_event(self, event):
            if event.kind == "product" and event.stage == "guards":
                printed.append((str(event.product), len(event.product.guards)))

    turret.compile(scaled, options=OWN, plugins=[Watch()])(torch.randn(3))
    ((text, count),) = printed
    assert len(text.splitlines()) == count and len(text) < 3000
    assert "TENSOR x" in text and "the namespace of" in text and "SETTING" in text
