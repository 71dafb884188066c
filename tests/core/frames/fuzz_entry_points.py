"""Calls every entry point of the native parts with arguments drawn at random; a process of its own, as one may crash.

Usage: ``python fuzz_entry_points.py SEED CALLS``.  Prints how many calls were refused, and how many were taken.
"""

from __future__ import annotations

import collections
import random
import sys
import types
import weakref

import torch

from turret.frames import frame_hook, guard_tree

REFUSALS = (TypeError, ValueError, OverflowError, AttributeError, RuntimeError)


class Gone:
    pass


def values(draw: random.Random) -> list:
    """What arguments are drawn from."""
    gone = Gone()
    dead = weakref.ref(gone)
    del gone
    numbers = tuple(draw.randint(-2, 20) for _ in range(draw.randint(0, 4)))
    step = (draw.randint(-1, 14), draw.randint(-2, 3), draw.choice(["x", 1, None, dead]), draw.randint(-1, 3))
    expected = draw.choice([(), ("x",), ("x", 1), ((), 1), None, "x", int])
    check = (draw.randint(-1, 20), numbers[:2], expected, numbers, draw.randint(0, 3))
    return [
        None, True, 0, 1, -1, 2**70, 1.5, "float32", b"x", (), [], {}, (1,), [1], {"a": 1}, {1: 2}, object(), len,
        int, Gone, values.__code__, values, lambda *a: None, torch.ones(2), dead, TypeError("x"), numbers, [step],
        [check], [step, step],
        (torch.ones(1), torch.ones(2)), Gone.__dict__["__dict__"], draw.choice([step, check]),
        types.SimpleNamespace(root=types.SimpleNamespace(units=[])),
    ]  # fmt: skip


def main(seed: int, calls: int) -> None:
    draw = random.Random(seed)
    hook, tree = frame_hook.load(), guard_tree.load()
    hook.configure(lambda *a: None, lambda code: frame_hook.FrameKind.SKIP)
    hook.prepare_entry(lambda *a: None, lambda callback: callback, {"_own": None}, None)
    hook.watch_hooks(tree.hooks_question())
    made = [hook.suspend(len), hook.tail(len, ()), tree.tree([], [], (), lambda numbers: lambda *a: True, 0, True)]
    functions = [
        *(getattr(hook, n) for n in ("configure", "call", "enter", "enter", "prepare_entry", "suspend", "tail")),
        hook.throw, hook.mark, hook.kind, hook.is_active, hook.is_installed, hook.after_fork, hook.watch_hooks,
        tree.hooks_question, tree.setup, tree.tree, tree.tree, tree.modes, tree.dtype_number, tree.plain,
        *made, *(type(m) for m in made), made[2].statistics,
    ]  # fmt: skip
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(calls):
        function, known = draw.choice(functions), values(draw)
        arguments = [draw.choice(known) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4, 5, 6, 7]))]
        if function is tree.tree and draw.random() < 0.8:
            lists = [v for v in known if isinstance(v, list)]
            arguments = [
                draw.choice(lists),
                draw.choice(lists),
                (),
                draw.choice([len, known[22]]),
                draw.randint(-1, 3),
                True,
            ]
        try:
            result = function(*arguments)
            counts["taken"] += 1
            if function is tree.tree:
                result(*[draw.choice(known) for _ in range(arguments[4] + 1)])
        except REFUSALS:
            counts["refused"] += 1
        if function is hook.prepare_entry:
            hook.prepare_entry(lambda *a: None, lambda callback: callback, {"_own": None}, None)
        if function is hook.configure:
            hook.configure(lambda *a: None, lambda code: frame_hook.FrameKind.SKIP)
    print(dict(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
