"""The frames of a capture: where it is, where it failed, when it stops."""

from __future__ import annotations

import attrs
import pytest

from turret.plugins.capture.errors import AskedFor, Raised, Unsupported
from turret.plugins.capture.facts import call_stack
from turret.plugins.capture.facts.call_stack import CallStack, as_text


@attrs.define(eq=False)
class Running:
    at: int = 1
    scope: dict = attrs.field(factory=dict)
    handling: list = attrs.field(factory=list)
    code = compile("x = 1\ny = 2", __file__, "exec")

    def line(self) -> int:
        return self.at


def entered(*frames: Running) -> CallStack:
    stack = CallStack()
    for frame in frames:
        stack.enter(frame)
    return stack


def test_the_place_is_the_innermost_line_and_the_text_names_all_lines():
    assert CallStack().location() == "" and as_text(CallStack().lines()) == ""
    stack = entered(Running(1), Running(3))
    assert stack.location() == f"{__file__}:3"
    first, quoted, second, *_ = as_text(stack.lines()).splitlines()
    assert first == f'  File "{__file__}", line 1, in <module>' and quoted == '    """' + __doc__ + '"""'
    assert second == f'  File "{__file__}", line 3, in <module>'


def test_the_root_stops_at_the_step_of_the_break_and_nowhere_else():
    stack = CallStack(break_at=2)
    assert [stack.stop_here() for _ in range(4)] == [False, False, True, False]
    assert not any(CallStack().stop_here() for _ in range(4))


@pytest.mark.parametrize("error", [Unsupported("no"), AskedFor("no"), Raised(ValueError())])
def test_where_the_first_exception_left_a_frame_is_kept(error):
    inner, outer = Running(2), Running(1)
    stack = entered(outer, inner)
    for _ in range(2):
        try:
            raise error
        except type(error):
            stack.leave()
        inner.at = outer.at = 7
    lines = [(outer.code, 1), (inner.code, 2)]
    raised = isinstance(error, Raised)
    assert (stack.failed, stack.raised) == ((None, lines) if raised else (lines, None))
    assert stack.frames == []


def test_frames_left_without_an_exception_leave_no_trace():
    stack = entered(Running())
    stack.leave()
    assert stack.failed is None and stack.raised is None


def test_too_many_rounds_and_too_deep_calls_are_not_captured(monkeypatch):
    monkeypatch.setattr(call_stack, "MAX_LOOP", 3)
    monkeypatch.setattr(call_stack, "MAX_DEPTH", 2)
    stack = entered(Running(), Running())
    with pytest.raises(Unsupported, match="nested more than 2 deep"):
        stack.enter(Running())
    for _ in range(3):
        stack.count_loop()
    with pytest.raises(Unsupported, match="more than 3 rounds"):
        stack.count_loop()


def test_what_callers_handle_is_the_innermost_exception_of_theirs():
    assert entered(Running(handling=["own"])).handled_outside() is None
    stack = entered(
        Running(handling=["far"]), Running(handling=["first", "near"]), Running(), Running(handling=["own"])
    )
    assert stack.handled_outside() == "near"


@pytest.mark.parametrize("name, expected", [("torch.optim.adam", True), ("torch.optimal", False), (None, False)])
def test_the_code_of_an_optimizer_is_known_by_its_module(name, expected):
    assert entered(Running(), Running(scope={"__name__": name})).in_optimizer() is expected
    assert not CallStack().in_optimizer()
