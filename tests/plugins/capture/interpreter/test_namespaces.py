"""Names that a frame finds outside of itself, with the guard that each needs."""

from __future__ import annotations

import builtins
import collections
import math
import types

import pytest

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.facts.policy import History, Policy
from turret.plugins.capture.interpreter.tracer import FrameTracer
from turret.plugins.capture.values.base import Constant


@pytest.fixture
def t() -> FrameTracer:
    return FrameTracer(Policy(None, History()))


def frame(**scope) -> types.SimpleNamespace:
    return types.SimpleNamespace(scope=scope, scope_source=BoundSource("G", scope), builtins=vars(builtins))


def taken(t: FrameTracer) -> list[tuple]:
    return [(g.kind, str(g.source), g.expected) for g in t.guards]


def test_a_global_of_the_program_is_guarded_where_it_is_looked_at(t):
    value = t.namespaces.variable(frame(__name__="program", n=3), "n")
    assert taken(t) == []
    assert value.constant() == 3
    assert taken(t) == [("EQUALS", "G['n']", 3)]


def test_a_function_of_a_package_that_nobody_patches_needs_no_guard(t):
    value = t.namespaces.variable(frame(__name__="torch.nn", f=math.sqrt), "f")
    assert value.constant() is math.sqrt and taken(t) == []
    assert [(f.kind, f.name, f.found) for f in t.provenance.facts.values() if f.kind == "item"] == [
        ("item", "f", math.sqrt)
    ]


@pytest.mark.parametrize("name, guards", [("program", [("NO_KEY", "G", "len")]), ("torch.nn", [])])
def test_a_builtin_rests_on_no_global_of_its_name(t, name, guards):
    assert t.namespaces.variable(frame(__name__=name), "len").constant() is len
    assert taken(t) == guards


def test_what_the_frame_set_is_found_and_what_it_deleted_is_not(t):
    where = frame(__name__="program", n=3, len=4)
    t.effects.set_global(where.scope, "n", Constant(5))
    assert t.namespaces.variable(where, "n").constant() == 5
    t.effects.set_global(where.scope, "len", None)
    assert t.namespaces.variable(where, "len").constant() is len
    with pytest.raises(Raised) as raised:
        t.namespaces.variable(where, "nowhere")
    assert raised.value.value.type() is NameError


@pytest.mark.parametrize(
    "arguments, found",
    [
        (("collections.abc", None, 0), collections),
        (("collections.abc", ("Mapping",), 0), collections.abc),
        (("abc", ("Mapping",), 1), collections.abc),
    ],
)
def test_a_module_that_is_loaded_is_imported(t, arguments, found):
    value = t.namespaces.import_module(frame(__name__="collections.inner", __package__="collections"), *arguments)
    assert value.constant() is found


def test_a_module_that_is_not_loaded_is_not_captured_and_a_name_that_is_missing_raises_in_the_program(t):
    where = frame(__name__="program")
    with pytest.raises(Unsupported, match="not loaded yet"):
        t.namespaces.import_module(where, "no_such_module", None, 0)
    module = t.namespaces.import_module(where, "collections", ("deque",), 0)
    assert t.namespaces.import_from(module, "deque").constant() is collections.deque
    assert t.namespaces.import_from(module, "abc").constant() is collections.abc
    with pytest.raises(Raised) as raised:
        t.namespaces.import_from(module, "nothing")
    assert raised.value.value.type() is ImportError
