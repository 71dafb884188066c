"""Special methods whose results Python checks or changes: an object's own answer counts only where Python takes it."""

from __future__ import annotations

import pytest
import torch

import turret


class Answers:
    """Gives ``answer`` to one special method."""

    def __init__(self, answer):
        self.answer = answer


def answering(method):
    return type(f"Answers{method}", (Answers,), {method: lambda self, *args: self.answer})


USES = [
    ("__bool__", lambda x, o: x + 1 if o else x - 1),
    ("__bool__", lambda x, o: x + bool(o)),
    ("__bool__", lambda x, o: x + any([o])),
    ("__len__", lambda x, o: x + len(o)),
    ("__len__", lambda x, o: x + (1 if not o else 2)),
    ("__int__", lambda x, o: x + int(o)),
    ("__float__", lambda x, o: x + float(o)),
    ("__index__", lambda x, o: x + [1, 2, 3, 4][o]),
    ("__index__", lambda x, o: x + len([1] * o)),
    ("__hash__", lambda x, o: x + hash(o)),
    ("__str__", lambda x, o: x + len(str(o))),
    ("__repr__", lambda x, o: x + len(repr(o))),
    ("__format__", lambda x, o: x + len(f"{o}")),
]


def outcome(function, *args):
    try:
        return function(*args)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(("method", "use"), USES)
def test_results_that_python_refuses_or_changes(method, use):
    kind, compiled = answering(method), turret.compile(use, options={"cache": False, "on_error": "raise"})
    for answer in (3, 1.5, None, "text", True, -1, *([2**70] if method in ("__len__", "__hash__") else [])):
        expected = outcome(use, torch.ones(2), kind(answer))
        found = outcome(compiled, torch.ones(2), kind(answer))
        if isinstance(expected, torch.Tensor):
            assert torch.equal(found, expected), answer
        else:
            assert found == expected, answer
