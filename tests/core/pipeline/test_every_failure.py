"""Whatever fails, one thing at a time: results and gradients are eager's, and one warning says whose fault it was.

The hooks are those of ``hookspecs``, so that one that is added later is made to fail here without further ado; the
compiler's calls are all that a cold process makes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings

import pytest
import torch

import turret
from turret.errors import StageError
from turret.frames import frame_hook
from turret.hooks import hookspecs
from turret.hooks.hookspecs import hookimpl
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.libraries import ROLE

pytestmark = pytest.mark.usefixtures("fresh")

NOT_ASKED = {"turret_options", "turret_load_graph", "turret_choice_cost"}
"""Asked when plugins are registered (a declaration that fails is refused), for what the same plugin saved, or on
devices that have several ways to a product (``tests/plugins/schedule/test_products.py``)."""
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("turret_") and name not in NOT_ASKED)
IGNORED = {"turret_event"}
"""Observers have no say in what is compiled: one that fails is passed over, whatever ``on_error`` is."""
BEFORE_THE_BACKWARD = {
    "turret_capture", "turret_guard_filter", "turret_decompositions", "turret_joint", "turret_partition",
    "turret_partition_cost", "turret_runtime", "turret_device",
}  # fmt: skip
"""Hooks that are asked once, for forward and backward."""


class Broken:
    """A plugin whose one hook raises from the moment on that it is ``armed``."""

    armed, asked = True, 0

    @classmethod
    def of(cls, hook: str) -> Broken:
        def fail(self):
            self.asked += self.armed
            if self.armed:
                raise RuntimeError("out of ideas")

        fail.__name__ = hook
        made = type("Broken", (cls,), {hook: hookimpl(fail)})()
        assert isinstance(made, Broken)
        return made


def program(x, w):
    h = torch.tanh(x @ w) + x.sum(-1, keepdim=True)
    return torch.softmax(h, -1), torch.sin(h).mean()


def inputs():
    torch.manual_seed(0)
    return torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)


def gradient(function, arm=lambda: None):
    """Results of a call and the gradients, ``arm`` called between forward and backward."""
    x, w = inputs()
    first, second = function(x, w)
    arm()
    (first.square().sum() + second).backward()
    return first.detach(), second.detach(), w.grad


def messages(caught):
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def check(found):
    for given, expected in zip(found, gradient(program), strict=True):
        torch.testing.assert_close(given, expected)


def compiled_with(plugin, on_error):
    return turret.compile(program, plugins=[plugin], options={"on_error": on_error, "cache": False})


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_leaves_eager_results_and_one_warning(hook):
    plugin = Broken.of(hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(gradient(compiled_with(plugin, "fallback")))
    assert plugin.asked
    (message,) = messages(caught)
    assert re.search(r"stage '\w+' \(plugin [\w.]*Broken\) failed.*RuntimeError: out of ideas", message)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_raises_where_asked_for(hook):
    plugin = Broken.of(hook)
    if hook in IGNORED:
        with pytest.warns(UserWarning, match="out of ideas"):
            check(gradient(compiled_with(plugin, "raise")))
        return
    with pytest.raises((StageError, RuntimeError), match="out of ideas"):
        gradient(compiled_with(plugin, "raise"))


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_for_the_backward_alone_leaves_eager_gradients(hook):
    plugin = Broken.of(hook)
    plugin.armed = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(gradient(compiled_with(plugin, "fallback"), lambda: setattr(plugin, "armed", True)))
    assert bool(plugin.asked) == (hook not in BEFORE_THE_BACKWARD)
    assert len(messages(caught)) == bool(plugin.asked)
    assert all(re.search(r"stage '\w+' \(plugin [\w.]*Broken\) failed", m) for m in messages(caught))


@pytest.mark.parametrize("hook", sorted(set(HOOKS) - IGNORED - BEFORE_THE_BACKWARD))
def test_a_hook_that_fails_for_the_backward_alone_raises_where_asked_for(hook):
    plugin = Broken.of(hook)
    plugin.armed = False
    with pytest.raises(StageError, match="out of ideas"):
        gradient(compiled_with(plugin, "raise"), lambda: setattr(plugin, "armed", True))


@pytest.mark.parametrize("phase", ["captured", "joint", "forward", "backward", "placed"])
def test_a_pass_that_fails_half_way_leaves_the_graph_as_it_was(phase):
    class Half:
        @hookimpl
        def turret_graph_pass(self, phase, module):
            if phase == self.phase:
                for node in list(module.graph.nodes):
                    if node.op == "call_function" and node.all_input_nodes:
                        node.replace_all_uses_with(node.all_input_nodes[0])
                        raise RuntimeError("out of ideas")

    plugin = Half()
    plugin.phase = phase
    with pytest.warns(UserWarning, match=r"stage 'graph_pass' \(plugin .*Half\) failed.*out of ideas"):
        check(gradient(compiled_with(plugin, "fallback")))


# The compiler, call by call.

COMPILER = """#!/bin/sh
# Fails in one way where its arguments name one thing, the first so many times; a compiler otherwise.
case "$*" in
  *"$BREAK_ON"*)
    if [ "$(ls "$BREAK_LOG" | wc -l)" -ge "$BREAK_AFTER" ]; then
      touch "$BREAK_LOG/broken"
      case "$BREAK_HOW" in
        status) echo "no room left" >&2; exit 1 ;;
        killed) kill -9 $$ ;;
        hangs) sleep 600 ;;
        garbage) while [ $# -gt 0 ]; do [ "$1" = -o ] && echo "no library" > "$2"; shift; done; exit 0 ;;
      esac
    fi
    touch "$BREAK_LOG/$$" ;;
esac
exec g++ "$@"
"""

PROGRAM = """
import os, pathlib, warnings
import torch
from turret.storage import prebuilt, toolchain
prebuilt.folder = lambda: pathlib.Path(os.environ["TURRET_CACHE_DIR"], "prebuilt")  # nothing was built ahead of time
from turret.plugins.codegen.cpp import compiler
toolchain.TIME_LIMIT = compiler.VERSION_LIMIT = 3
import turret

def program(x, w):
    h = torch.tanh(x @ w) + x.sum(-1, keepdim=True)
    return torch.softmax(h, -1), torch.sin(h).mean()

def gradient(function):
    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    first, second = function(x, w)
    (first.square().sum() + second).backward()
    return first.detach(), second.detach(), w.grad

compiled = turret.compile(program)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        for given, expected in zip(gradient(compiled), gradient(program)):
            torch.testing.assert_close(given, expected)
print("\\n".join(str(w.message).replace("\\n", " ") for w in caught))
"""

CALLS = {
    "the frame hook": ("frame_hook.cpp", 0, "capture"),
    "the guard tree": ("guard_tree.cpp", 0, None),
    "the autograd nodes": ("nodes.cpp", 0, "runtime"),
    "the compiler's version": ("--version", 0, "codegen"),
    "the forward": ("unit.cpp", 0, "codegen"),
    "the backward": ("unit.cpp", 1, "codegen"),
}
"""Each call of the compiler: what it names, how many such calls went before, and the stage that fails without it."""
WAYS = {
    "the frame hook": ["hangs"],
    "the guard tree": ["garbage"],
    "the autograd nodes": ["status"],
    "the compiler's version": ["killed"],
    "the forward": ["status", "garbage"],
    "the backward": ["killed"],
}
"""Each call in one way, and each way once: a process for all twenty takes three minutes."""


@pytest.mark.slow
@pytest.mark.parametrize(("call", "how"), [(call, how) for call, ways in WAYS.items() for how in ways])
@pytest.mark.thorough
def test_each_call_of_the_compiler_may_fail(call, how, tmp_path):
    named, after, stage = CALLS[call]
    script, cache, log = tmp_path / "compiler", tmp_path / "cache", tmp_path / "log"
    script.write_text(COMPILER)
    script.chmod(0o700)
    log.mkdir()
    if stage != "capture":
        put_native_parts(cache, but=[call.removeprefix("the ")])
    changed = {"BREAK_ON": named, "BREAK_AFTER": str(after), "BREAK_HOW": how, "BREAK_LOG": str(log)}
    environment = {**os.environ, **changed, "CXX": str(script), "TURRET_CACHE_DIR": str(cache)}
    environment["TURRET_ON_ERROR"] = "fallback"
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (log / "broken").exists()
    said = [line for line in done.stdout.splitlines() if line]
    if stage is None:
        assert said == []  # guards are checked in Python then, which an event says
    else:
        (message,) = said
        assert re.search(rf"stage '({stage}|load)' \(plugin [\w.]+\) failed: ", message)


NO_HEADERS = """
import sysconfig
real = sysconfig.get_paths
sysconfig.get_paths = lambda *args, **kwargs: {**real(*args, **kwargs), "include": "/nowhere"}
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_frame_hook", [False, True])
@pytest.mark.thorough
def test_python_headers_may_be_missing(with_frame_hook, tmp_path):
    if with_frame_hook:
        put_native_parts(tmp_path, but=["guard tree"])
    environment = {**os.environ, "TURRET_CACHE_DIR": str(tmp_path), "TURRET_ON_ERROR": "fallback"}
    command = [sys.executable, "-c", NO_HEADERS + PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line]
    if with_frame_hook:
        assert said == []  # guards are checked in Python then, which an event says
    else:
        (message,) = said
        assert re.search(r"stage 'capture' .* failed: .* needs the Python headers, and /nowhere lacks them", message)


def put_native_parts(cache, but):
    """Copy this process's native parts of capturing and of the runtime into another cache, ``but`` for some."""
    from turret.frames import guard_tree
    from turret.graph.autograd import nodes

    parts = {
        "frame hook": frame_hook.EXTENSION,
        "guard tree": guard_tree.extension(),
        "autograd nodes": nodes.extension(),
    }
    for name, part in parts.items():
        if name in but:
            continue
        ArtifactCache(cache).put(part.key(), ROLE, {part.library: part.content()})
