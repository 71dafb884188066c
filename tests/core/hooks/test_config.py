"""Options are checked where they are given, and errors say what was given, what was expected and what is nearest."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.errors import OptionError
from turret.hooks import config, plugin_manager

OPTIONS = plugin_manager.default_manager().options
"""Core's, and those of the built-in plugins."""


def updated(options):
    return config.updated(config.defaults(OPTIONS), options, OPTIONS)


def good_values(option):
    kind = option.kind
    if option.choices:
        return st.sampled_from(option.choices)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=8)
    low, high = option.low, option.high
    if kind is tuple:
        return st.lists(st.integers() if option.item is int else st.text(max_size=8), max_size=3).map(tuple)
    return st.integers(low, high) if kind is int else st.floats(low, high)


@given(st.fixed_dictionaries({}, optional={name: good_values(option) for name, option in OPTIONS.items()}))
@settings(max_examples=100, deadline=None)
def test_valid_options_are_kept_and_the_rest_stay_at_their_defaults(options):
    made = updated(options)
    for name, option in OPTIONS.items():
        assert getattr(made, name) == options.get(name, option.default)
        assert type(getattr(made, name)) is option.kind


@given(
    st.sampled_from(sorted(OPTIONS)),
    st.one_of(st.none(), st.binary(), st.lists(st.none(), min_size=1), st.complex_numbers()),
)
@settings(max_examples=60, deadline=None)
def test_values_of_another_type_are_refused_by_name(name, value):
    with pytest.raises(OptionError, match=f"option '{name}' is .*expected"):
        updated({name: value})


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), float("inf"), 2])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(OptionError, match="expected 0 to 1"):
        updated({"memory_budget": value})


def test_a_bool_is_no_number_and_a_number_no_bool():
    with pytest.raises(OptionError, match="expected a int"):
        updated({"max_fusion_size": True})
    with pytest.raises(OptionError, match="expected a bool"):
        updated({"cache": 1})
    with pytest.raises(OptionError, match="at least 1"):
        updated({"max_fusion_size": 0})


@pytest.mark.parametrize("name", ["on_eror", "onerror", "ON_ERROR", "partioner", "cachedir", "guard_filter"])
def test_unknown_names_lead_to_the_nearest(name):
    with pytest.raises(OptionError, match=f"unknown option '{name}'.*did you mean"):
        updated({name: "x"})


def test_names_and_containers_of_other_types_are_refused():
    with pytest.raises(OptionError, match="unknown option 3"):
        updated({3: 4})
    with pytest.raises(OptionError, match="expected a dictionary"):
        updated(["cache"])
    with pytest.raises(OptionError, match="unknown mode 3"):
        config.resolve(3, None)
    with pytest.raises(OptionError, match="unknown mode ''"):
        config.resolve("", None)


def test_dashes_and_dots_are_underscores():
    assert updated({"memory-budget": 0.5, "max.fusion.size": 3}) == updated(
        {"memory_budget": 0.5, "max_fusion_size": 3}
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cache", "0", False), ("cache", "TRUE", True), ("cache", "off", False), ("memory_budget", "0.25", 0.25),
        ("max_fusion_size", "12", 12), ("partitioner", "save_all", "save_all"), ("cpp_flags", "-g -O0", "-g -O0"),
    ],
)  # fmt: skip
def test_the_environment_sets_defaults(monkeypatch, name, text, value):
    monkeypatch.setenv(f"TURRET_{name.upper()}", text)
    assert getattr(config.from_environment(OPTIONS), name) == value


@pytest.mark.parametrize(
    ("name", "text"), [("cache", "perhaps"), ("memory_budget", "lots"), ("max_fusion_size", "0"), ("on_error", "rise")]
)
def test_a_bad_environment_variable_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"TURRET_{name.upper()}", text)
    with pytest.raises(OptionError, match=f"TURRET_{name.upper()} is '{text}'.*expected"):
        config.from_environment(OPTIONS)


SAME = [("max-autotune", None), (None, {"cudagraphs": True, "max_autotune": True})]


def test_configurations_are_values():
    one, other = (config.resolve(*asked, OPTIONS) for asked in SAME)
    assert one == other and hash(one) == hash(other)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.cache = False


@pytest.mark.parametrize("name", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_numbers_and_sizes_of_data_stay_in_the_graph_where_that_is_asked_for(name):
    assert getattr(config.defaults(OPTIONS), name) is False
    assert getattr(updated({name: True}), name) is True
    with pytest.raises(OptionError, match="expected a bool"):
        updated({name: 1})


def test_a_mode_sets_what_is_declared():
    assert config.resolve("max-autotune", None) == config.resolve(None, None)  # where no plugin knows of CUDA graphs


def test_core_keeps_what_is_cores():
    core = {name for name, option in OPTIONS.items() if not option.plugin}
    assert core == {"on_error", "cache", "cache_dir", "cache_size_limit", "debug_dir"} == set(config.CORE)
