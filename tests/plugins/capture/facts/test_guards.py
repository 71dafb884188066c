"""Guards of a capture: taken once, with the line, and told to those who watch."""

from __future__ import annotations

import types

import pytest

from turret.frames.guards import Guard
from turret.frames.sources import BoundSource, LocalSource
from turret.plugins.capture.facts.guards import Guards

X = LocalSource(0, "x")


def test_a_guard_that_is_taken_twice_is_there_once_where_it_came_first():
    guards = Guards(lambda: "file:1")
    guards.take("EQUALS", X, 1)
    guards.add(Guard("TYPE", X, int))
    guards.take("EQUALS", X, 1)
    assert [g.kind for g in guards] == ["EQUALS", "TYPE"] and len(guards) == 2


def test_a_guard_says_the_line_that_it_was_taken_at():
    line = "file:1"
    guards = Guards(lambda: line)
    guards.take("EQUALS", X, 1)
    line = "file:2"
    guards.take("EQUALS", X, 2)
    assert [g.stack for g in guards] == ["file:1", "file:2"]


@pytest.mark.parametrize("kind, taken", {"TYPE": 0, "ID": 0, "EQUALS": 0, "SAME": 0, "LENGTH": 1, "KEYS": 1}.items())
def test_what_holds_by_itself_of_an_object_that_the_unit_holds_needs_no_guard(kind, taken):
    guards = Guards(str)
    guards.take(kind, BoundSource("held", []), 0)
    assert len(guards) == taken


def test_who_watches_hears_of_each_guard_that_is_taken_known_or_not_and_of_none_that_is_added():
    guards, heard = Guards(str), []
    guards.watchers.append(heard.append)
    guards.take("EQUALS", X, 1)
    guards.take("EQUALS", X, 1)
    guards.add(Guard("TYPE", X, int))
    guards.take("ID", BoundSource("held", guards), guards)
    assert [g.kind for g in heard] == ["EQUALS", "EQUALS"]


def test_global_hooks_are_guarded_once():
    guards, module = Guards(str), types.ModuleType("hooks")
    for _ in range(2):
        guards.assume_no_global_hooks(module, ("a", "b"))
    assert [(g.kind, str(g.source), g.expected) for g in guards] == [("KEYS", f"hooks.{n}", ()) for n in "ab"]
