"""A forked child compiles, whatever other threads of its parent were doing: it waits for nobody who is not there."""

from __future__ import annotations

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import turret
from turret.hooks import hookspecs
from turret.hooks.hookspecs import hookimpl
from turret.pipeline import gc_pause
from turret.plugins.observers import progress
from turret.storage import fork_safety
from turret.storage.fork_safety import Lock

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
SOURCES = Path(__file__).parents[3]


def succeeds_in_a_fork(work, seconds=60.0):
    """Whether ``work()`` ends well, and in time, in a forked child."""
    child = os.fork()
    if child == 0:
        status = 1
        torch.set_num_threads(1)  # as data loaders do: OpenMP's own threads are not there either
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGABRT)
    os.waitpid(child, 0)
    return False


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock, held, done = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock, lock:
            held.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()

    def take():
        with lock, lock:
            pass

    assert succeeds_in_a_fork(take, 5)
    done.set()
    other.join()
    take()


def test_a_lock_that_the_forking_thread_holds_is_its_own_in_the_child():
    lock = Lock()

    def is_free():
        found = []

        def look():
            found.append(lock._lock.acquire(blocking=False))
            if found[0]:
                lock._lock.release()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return found[0]

    def work():
        assert not is_free()
        with lock:
            pass
        lock.__exit__()
        assert is_free()

    with lock:
        assert succeeds_in_a_fork(work, 10)


def test_all_locks_are_such():
    """``threading``'s own locks, and what holds one by itself, are made in ``fork_safety`` alone."""
    folders = [SOURCES / name for name in ("core", "plugins", "contrib")]
    found = []
    for path in (p for folder in folders for p in sorted(folder.rglob("*.py")) if p.name != "fork_safety.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.startswith("threading.") and name.endswith(("Lock", "Condition", "Semaphore", "Barrier")):
                found.append(path.relative_to(SOURCES).as_posix())
    # Jobs in worker processes are given out by one function, which is over before anybody forks; fingerprints know
    # locks by their types.
    assert sorted({*found} - {"core/testing/kit/isolation.py", "core/pipeline/keys/code_fingerprint.py"}) == []


def program(x, w):
    return torch.softmax(torch.tanh(x @ w), -1).square().sum()


def gradient(function):
    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    function(x, w).backward()
    return w.grad


class Anew:
    """A plugin that keeps graphs from the cache, which has the kernels alone."""

    @hookimpl
    def turret_graph_pass(self):
        return None


def value(function):
    with torch.no_grad():
        torch.manual_seed(0)
        return function(torch.randn(4, 8), torch.randn(8, 8))


def compiles():
    compiled = turret.compile(program, plugins=[Anew()], options={"on_error": "raise"})
    torch.testing.assert_close(value(compiled), value(program))
    try:
        expected = gradient(program)
    except RuntimeError:  # torch built with CUDA runs no backward in a child of a process that ran one
        return
    torch.testing.assert_close(gradient(compiled), expected)


class Waits:
    """A plugin whose hook waits to be let go, once it was asked in a certain graph."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    @classmethod
    def at(cls, hook):
        def wait(self):
            self.reached.set()
            assert self.go.wait(120)

        wait.__name__ = hook
        return type("Waits", (cls,), {hook: hookimpl(wait)})()


NOT_ASKED = {"turret_load_graph", "turret_choice_cost"}
"""For what the same plugin saved, or on devices that have several ways to a product."""


@pytest.mark.parametrize(
    "hook", sorted(name for name in vars(hookspecs) if name.startswith("turret_") and name not in NOT_ASKED)
)
def test_a_child_compiles_while_another_thread_is_in_a_stage(hook):
    plugin = Waits.at(hook)

    def work():
        gradient(turret.compile(program, plugins=[plugin]))

    other = threading.Thread(target=work)
    other.start()
    assert plugin.reached.wait(60)
    try:
        assert succeeds_in_a_fork(compiles)
    finally:
        plugin.go.set()
        other.join()


def test_what_a_compile_of_another_thread_had_set_is_put_right():
    entered, go = threading.Event(), threading.Event()
    before = gc.get_threshold()

    def compile_for_long():
        with gc_pause.full_gc_paused():
            entered.set()
            go.wait()

    other = threading.Thread(target=compile_for_long)
    other.start()
    entered.wait()

    def check():
        assert gc.get_threshold() == before
        assert progress._line.under_way == 0 and not fork_safety.compiling.depths

    assert gc.get_threshold() != before
    progress._line.under_way += 1
    assert succeeds_in_a_fork(check, 10)
    progress._line.under_way -= 1
    go.set()
    other.join()
    assert gc.get_threshold() == before


IMPORTS = """
import os, sys, threading, time
from turret.storage import fork_safety
sys.path.insert(0, sys.argv[1])

def work():
    with fork_safety.compiling.here():
        import slow

threading.Thread(target=work).start()
while "slow" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    import slow
    os._exit(slow.value)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_a_module_that_a_compile_imports(tmp_path):
    Path(tmp_path, "slow.py").write_text("import time\ntime.sleep(0.5)\nvalue = 42\n")
    command = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["42"], done.stderr
