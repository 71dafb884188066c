"""The order in which plugins are asked, or run, is that of registration, as far as nobody asks for another one."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.errors import PluginError
from turret.hooks import plugin_manager
from turret.hooks.registration.plugin_order import IN_TURN, in_order

NAMES = ("A", "B", "C", "D")


def plugin(name, hook, **order):
    def implementation(self):
        return None

    implementation.__name__ = hook
    made = type(name, (), {hook: turret.hookimpl(**order)(implementation), "__module__": "order"})
    return made()


def order_of(hook, *plugins):
    found = [impl.plugin_name for impl in in_order(plugin_manager.create(plugins), hook)]
    return [name.removeprefix("order.") for name in found]


def test_passes_run_in_order_of_registration_after_the_built_ins():
    made = [plugin(name, "turret_graph_pass") for name in "AB"]
    assert order_of("turret_graph_pass", *made) == ["turret.plugins.graph_pass", "A", "B"]


def test_of_others_the_last_is_asked_first():
    made = [plugin(name, "turret_place") for name in "AB"]
    assert order_of("turret_place", *made) == ["B", "A", "turret.plugins.place"]


@pytest.mark.parametrize("hook", ["turret_graph_pass", "turret_place"])
def test_an_order_that_is_asked_for_is_kept(hook):
    built_in = f"turret.plugins.{hook.removeprefix('turret_')}"
    usual = order_of(hook, plugin("A", hook), plugin("B", hook))
    assert order_of(hook, plugin("A", hook, tryfirst=True), plugin("B", hook))[0] == "A"
    assert order_of(hook, plugin("A", hook), plugin("B", hook, trylast=True))[-1] == "B"
    before = order_of(hook, plugin("A", hook), plugin("B", hook, before=built_in))
    assert before.index("B") < before.index(built_in)
    after = order_of(hook, plugin("A", hook, after=built_in), plugin("B", hook))
    assert after.index("A") > after.index(built_in)
    turned = usual[::-1]
    mine = [name for name in turned if name in "AB"]
    assert [
        n for n in order_of(hook, plugin(mine[0], hook, before=f"order.{mine[1]}"), plugin(mine[1], hook)) if n in "AB"
    ] == mine
    assert order_of(hook, plugin("A", hook, before="not.installed"), plugin("B", hook)) == usual


@given(
    st.sampled_from(["turret_graph_pass", "turret_wrap_runtime", "turret_place", "turret_lowerings"]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=4),
    st.permutations(NAMES),
)
@settings(max_examples=60, deadline=None)
def test_any_wishes_are_met_or_refused(hook, wishes, given_in):
    wishes = [(one, other) for one, other in wishes if one != other]
    made = [plugin(name, hook, before=[f"order.{other}" for one, other in wishes if one == name]) for name in given_in]
    possible = any(
        all(order.index(one) < order.index(other) for one, other in wishes) for order in itertools.permutations(NAMES)
    )
    if not possible:
        with pytest.raises(PluginError, match="before and after each other"):
            order_of(hook, *made)
        return
    found = order_of(hook, *made)
    assert all(found.index(one) < found.index(other) for one, other in wishes)
    usual = list(given_in) if hook in IN_TURN else list(given_in)[::-1]
    if not wishes:
        assert [name for name in found if name in NAMES] == usual


def test_the_order_is_that_in_which_they_are_called():
    calls = []

    def asked(name):
        class Asked:
            @turret.hookimpl(before="order.Last", after="order.First")
            def turret_place(self):
                calls.append(name)

        Asked.__name__ = Asked.__qualname__ = name
        Asked.__module__ = "order"
        return Asked()

    class First:
        __module__ = "order"

        @turret.hookimpl
        def turret_place(self):
            calls.append("First")

    class Last:
        __module__ = "order"

        @turret.hookimpl(tryfirst=True)
        def turret_place(self):
            calls.append("Last")

    First.__qualname__, Last.__qualname__ = "First", "Last"
    options = {"cache": False, "on_error": "raise"}
    turret.compile(torch.sin, plugins=[First(), asked("Middle"), Last()], options=options)(torch.ones(3))
    assert calls == ["First", "Middle", "Last"]


def test_two_of_one_class_go_by_its_name():
    hook = "turret_graph_pass"
    twins = [type("Twin", (), {hook: turret.hookimpl(_named(hook)), "__module__": "order"})] * 2
    found = order_of(hook, *(twin() for twin in twins), plugin("A", hook, before="order.Twin"))
    assert found.index("A") < found.index("Twin") < found.index("Twin 2")


def _named(hook):
    def implementation(self):
        return None

    implementation.__name__ = hook
    return implementation


def test_a_built_in_that_does_not_exist_is_refused():
    wrong = plugin("A", "turret_graph_pass", before="turret.plugins.graph_passes")
    with pytest.raises(
        PluginError, match=r"'order.A' wants an order relative to .*did you mean 'turret.plugins.graph_pass'"
    ):
        plugin_manager.create((wrong,))
    with pytest.raises(PluginError, match="names of plugins"):
        turret.hookimpl(before=3 * [None])


@pytest.mark.parametrize("hook", sorted(IN_TURN))
def test_a_wrapper_of_what_runs_in_turn_is_refused(hook):
    def around(self):
        yield

    around.__name__ = hook
    made = type("Around", (), {hook: turret.hookimpl(wrapper=True)(around)})()
    with pytest.raises(PluginError, match=f"wraps {hook}.*tryfirst"):
        plugin_manager.create((made,))
