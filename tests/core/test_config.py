"""Options are checked where they are given, and errors say what was given, what was expected and what is nearest."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret import config
from turret.errors import OptionError

FIELDS = {field.name: field for field in attrs.fields(config.Config)}


def good_values(field):
    rules, kind = field.metadata, type(field.default)
    if rules["choices"]:
        return st.sampled_from(rules["choices"])
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=8)
    low, high = rules["low"], rules["high"]
    return st.integers(low, high) if kind is int else st.floats(low, high)


@given(st.fixed_dictionaries({}, optional={name: good_values(field) for name, field in FIELDS.items()}))
@settings(max_examples=100, deadline=None)
def test_valid_options_are_kept_and_the_rest_stay_at_their_defaults(options):
    made = config.Config().updated(options)
    for name, field in FIELDS.items():
        assert getattr(made, name) == options.get(name, field.default)
        assert type(getattr(made, name)) is type(field.default)


@given(
    st.sampled_from(sorted(FIELDS)), st.one_of(st.none(), st.binary(), st.lists(st.integers()), st.complex_numbers())
)
@settings(max_examples=60, deadline=None)
def test_values_of_another_type_are_refused_by_name(name, value):
    with pytest.raises(OptionError, match=f"option '{name}' is .*expected"):
        config.Config().updated({name: value})


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), float("inf"), 2])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(OptionError, match="expected 0 to 1"):
        config.Config().updated({"memory_budget": value})


def test_a_bool_is_no_number_and_a_number_no_bool():
    with pytest.raises(OptionError, match="expected a int"):
        config.Config().updated({"max_fusion_size": True})
    with pytest.raises(OptionError, match="expected a bool"):
        config.Config().updated({"cache": 1})
    with pytest.raises(OptionError, match="at least 1"):
        config.Config().updated({"max_fusion_size": 0})


@pytest.mark.parametrize("name", ["on_eror", "onerror", "ON_ERROR", "partioner", "cachedir", "guard_filter"])
def test_unknown_names_lead_to_the_nearest(name):
    with pytest.raises(OptionError, match=f"unknown option '{name}'.*did you mean"):
        config.Config().updated({name: "x"})


def test_names_and_containers_of_other_types_are_refused():
    with pytest.raises(OptionError, match="unknown option 3"):
        config.Config().updated({3: 4})
    with pytest.raises(OptionError, match="expected a dictionary"):
        config.Config().updated(["cache"])
    with pytest.raises(OptionError, match="unknown mode 3"):
        config.resolve(3, None)
    with pytest.raises(OptionError, match="unknown mode ''"):
        config.resolve("", None)


def test_dashes_and_dots_are_underscores():
    assert config.Config().updated({"memory-budget": 0.5, "max.fusion.size": 3}) == config.Config(
        memory_budget=0.5, max_fusion_size=3
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
    assert getattr(config.from_environment(), name) == value


@pytest.mark.parametrize(
    ("name", "text"), [("cache", "perhaps"), ("memory_budget", "lots"), ("max_fusion_size", "0"), ("on_error", "rise")]
)
def test_a_bad_environment_variable_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"TURRET_{name.upper()}", text)
    with pytest.raises(OptionError, match=f"TURRET_{name.upper()} is '{text}'.*expected"):
        config.from_environment()


def test_configurations_are_values():
    one, other = config.resolve("max-autotune", None), config.resolve(None, {"cudagraphs": True, "max_autotune": True})
    assert one == other and hash(one) == hash(other)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.cache = False


@pytest.mark.parametrize("name", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_numbers_and_sizes_of_data_stay_in_the_graph_where_that_is_asked_for(name):
    assert getattr(config.Config(), name) is False
    assert getattr(config.Config().updated({name: True}), name) is True
    with pytest.raises(OptionError, match="expected a bool"):
        config.Config().updated({name: 1})
