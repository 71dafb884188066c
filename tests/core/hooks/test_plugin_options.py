"""Options that plugins declare: given, checked, listed and read as the built-in ones, and part of cache keys."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import turret
from turret.errors import OptionError, PluginError
from turret.hooks import plugin_manager

pytestmark = pytest.mark.usefixtures("fresh")


class Limited:
    """Declares a limit, and keeps the configuration that it is handed."""

    cache_key = "limited"
    declared = (
        turret.Option(name="acme_limit", default=4, doc="most apples", low=1, high=9),
        turret.Option(
            name="acme_kind", default="red", doc="which apples", choices=("red", "green"), environment="ACME"
        ),
    )

    def __init__(self):
        self.seen = []

    @turret.hookimpl
    def turret_options(self):
        return self.declared

    @turret.hookimpl
    def turret_fusion_score(self, context):
        self.seen.append((context.config.acme_limit, context.config.acme_kind))


def declaring(*options):
    class Declares:
        @turret.hookimpl
        def turret_options(self):
            return options

    return Declares()


def program(x):
    return (x.sin() + 1).sum(0), x.cos().amax(0)


def run(plugin, **options):
    turret.compile(program, plugins=[plugin], options={"cache": False, "on_error": "raise", **options})(
        torch.ones(3, 5)
    )
    return plugin.seen[-1]


def test_values_come_from_default_environment_and_options(monkeypatch):
    assert run(Limited()) == (4, "red")
    monkeypatch.setenv("TURRET_ACME_LIMIT", "7")
    monkeypatch.setenv("ACME", "green")
    assert run(Limited()) == (7, "green")
    assert run(Limited(), **{"acme-limit": 8}) == (8, "green")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acme_limit": 10}, r"'acme_limit' is 10, expected 1 to 9: most apples \(an option of plugin .*Limited\)"),
        ({"acme_limit": "7"}, "expected a int"),
        ({"acme_kind": "gren"}, "did you mean 'green'"),
        ({"acme_limt": 3}, "did you mean 'acme_limit'"),
    ],
)
def test_a_wrong_value_is_refused_and_names_the_plugin(options, says):
    with pytest.raises(OptionError, match=says):
        turret.compile(program, plugins=[Limited()], options=options)


def test_a_wrong_variable_is_refused_and_names_the_plugin(monkeypatch):
    monkeypatch.setenv("ACME", "blue")
    with pytest.raises(OptionError, match=r"ACME is 'blue': option 'acme_kind' .*plugin .*Limited"):
        turret.compile(program, plugins=[Limited()])


def test_options_hold_for_the_callable_that_has_the_plugin():
    with pytest.raises(OptionError, match="unknown option 'acme_limit'"):
        turret.compile(program, options={"acme_limit": 3})
    config = plugin_manager.configure(plugin_manager.default_manager())
    assert not hasattr(config, "acme_limit")
    with pytest.raises(AttributeError, match="no plugin of this compilation declares it"):
        config.acme_limit  # noqa: B018


def test_they_are_listed():
    listed = turret.list_options(plugins=[Limited()])
    assert listed["acme_limit"] == "most apples (default 4)"
    assert listed["acme_kind"] == "which apples (default 'red', environment variable ACME)"
    assert set(turret.list_options()) == set(listed) - {"acme_limit", "acme_kind"}


def test_configurations_with_them_are_values():
    manager = plugin_manager.create((Limited(),))
    one, other, third = (plugin_manager.configure(manager, None, {"acme_limit": n}) for n in (3, 3, 5))
    assert one == other != third and hash(one) == hash(other) and repr(one) != repr(third)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one


def test_they_are_part_of_the_cache_key(tmp_path):
    def compiles(limit):
        plugin = Limited()
        options = {"acme_limit": limit, "cache_dir": str(tmp_path / "cache"), "on_error": "raise"}
        turret.compile(program, plugins=[plugin], options=options)(torch.ones(3, 5))
        turret.reset()
        return bool(plugin.seen)

    assert [compiles(limit) for limit in (3, 3, 5, 5, 3)] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (declaring(turret.Option(name="cache", default=1, doc="mine")), "'cache', which is one of Turret itself"),
        (declaring(turret.Option(name="partitioner", default="x", doc="mine")), "one of turret.plugins.partition"),
        (declaring(*[turret.Option(name="twice", default=1, doc="")] * 2), "'twice', which is one of .*Declares"),
        (declaring(turret.Option(name="guard_filter_fn", default=1, doc="")), "has taken"),
        (declaring(turret.Option(name="of_plugins", default=1, doc="")), "has taken"),
        (declaring(turret.Option(name="My-Option", default=1, doc="")), "lower-case identifier"),
        (declaring(turret.Option(name="mine", default=0, doc="", low=1)), "a default that its option does not take"),
        (declaring(turret.Option(name="mine", default=None, doc="", kind=int)), "expected a int"),
        (declaring("mine"), "expected options as turret.Option"),
    ],
)
def test_declarations_that_cannot_be_are_refused(plugin, says):
    with pytest.raises(PluginError, match=rf"plugin '.*Declares'.*{says}"):
        plugin_manager.create((plugin,))


def test_a_declaration_that_fails_names_the_plugin():
    class Fails:
        @turret.hookimpl
        def turret_options(self):
            raise RuntimeError("out of ideas")

    with pytest.raises(PluginError, match=r"plugin '.*Fails' fails to declare its options: RuntimeError: out of ideas"):
        turret.compile(program, plugins=[Fails()])


def test_two_plugins_cannot_declare_one_name():
    class Other(Limited):
        pass

    with pytest.raises(
        PluginError, match=r"plugin '.*Other' declares the option 'acme_limit', which is one of .*Limited"
    ):
        turret.compile(program, plugins=[Limited(), Other()])


ROOMS = declaring(
    turret.Option(name="acme_rooms", default=(), doc="which rooms"),
    turret.Option(name="acme_floors", default=(1,), item=int, doc="which floors"),
)


@pytest.mark.parametrize(
    ("given", "rooms"), [(("a", "b"), ("a", "b")), (["a"], ("a",)), ("a, b,", ("a", "b")), ("", ()), ((), ())]
)
def test_a_tuple_is_given_as_one_as_a_list_or_as_text_with_commas(monkeypatch, given, rooms):
    manager = plugin_manager.create((ROOMS,))
    assert plugin_manager.configure(manager, options={"acme_rooms": given}).acme_rooms == rooms
    if isinstance(given, str):
        monkeypatch.setenv("TURRET_ACME_ROOMS", given)
        assert plugin_manager.configure(manager).acme_rooms == rooms


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acme_rooms": 3}, "'acme_rooms' is 3, expected a tuple of str, or text with commas"),
        ({"acme_rooms": ("a", 3)}, "expected a tuple of str"),
        ({"acme_floors": ("1",)}, "expected a tuple of int"),
        ({"acme_floors": "1,b"}, "'acme_floors' is '1,b', expected a tuple of int"),
    ],
)
def test_what_is_no_tuple_of_the_right_elements_is_refused(options, says):
    with pytest.raises(OptionError, match=says):
        plugin_manager.configure(plugin_manager.create((ROOMS,)), options=options)


def test_a_tuple_of_numbers_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TURRET_ACME_FLOORS", "2,3")
    assert plugin_manager.configure(plugin_manager.create((ROOMS,))).acme_floors == (2, 3)
    monkeypatch.setenv("TURRET_ACME_FLOORS", "2,x")
    with pytest.raises(OptionError, match=r"TURRET_ACME_FLOORS is '2,x'.*tuple of int"):
        plugin_manager.configure(plugin_manager.create((ROOMS,)))
