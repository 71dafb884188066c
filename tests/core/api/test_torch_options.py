"""Options and variables of torch.compile's own: meant here, or named in one warning; typing errors stay errors."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

import turret
from turret.errors import OptionError, TurretWarning

X = torch.ones(3)


def config_of(options):
    return turret.compile(lambda x: x + 1, options=options).turret_settings.context.config


def test_options_that_mean_something_are_taken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = config_of({"triton.cudagraphs": True, "max_autotune": True, "epilogue_fusion": True})
        assert (config.cudagraphs, config.max_autotune) == (True, True)
        assert config_of({"triton.cudagraphs": True, "cudagraphs": False}).cudagraphs is False
        assert config_of({"cudagraphs": False, "triton.cudagraphs": True}).cudagraphs is False


def test_options_that_mean_nothing_are_named_in_one_warning():
    with pytest.warns(TurretWarning) as warned:
        config_of({"epilogue_fusion": False, "shape_padding": True, "cpp.threads": 2, "memory_budget": 0.5})
    (warning,) = warned
    assert "epilogue_fusion=False, shape_padding=True, cpp.threads=2;" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("name", ["epilogue_fusionn", "triton.cudagraph", "cpp"])
def test_a_name_that_nobody_knows_is_an_error(name):
    with pytest.raises(OptionError, match=f"unknown option '{name}'"):
        config_of({name: True})


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_the_environment_switches_compiling_off(variable, monkeypatch):
    def function(x):
        return x + 1

    monkeypatch.setenv(variable, "1")
    assert turret.compile(function) is function
    module = torch.nn.Linear(3, 3)
    assert turret.compile(module) is module
    monkeypatch.setenv(variable, "0")
    assert turret.compile(function) is not function


def test_a_setting_of_torchs_compiler_switches_compiling_off():
    settings = importlib.import_module("torch._dynamo.config")

    def function(x):
        return x + 1

    with settings.patch(disable=True):
        assert turret.compile(function) is function


@pytest.mark.parametrize(
    "name",
    [
        "keep_tensor_guards_unsafe", "skip_all_guards_unsafe", "skip_guard_on_all_nn_modules_unsafe",
        "skip_guard_on_globals_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe",
    ],
)  # fmt: skip
def test_ready_made_guard_filters(name):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    guards = turret.explain(model)(X).guards
    filtered = turret.explain(model, options={"guard_filter_fn": getattr(turret, name)})(X).guards
    assert filtered < guards
