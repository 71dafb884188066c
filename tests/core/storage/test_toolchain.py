"""A compiler runs in a group of its own and ends with all that it started, however a compile ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from turret.errors import CodegenError
from turret.storage import toolchain

STARTS_ANOTHER = "echo $$ > {folder}/driver; sleep 600 & echo $! > {folder}/started; wait"
"""A driver that waits for a program which it has started, as g++ does."""


def alive(number: int) -> bool:
    """Whether a process is there, zombies left out."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def processes(folder: Path) -> list[int]:
    """The driver and what it started, once both are there."""
    files = [folder / "driver", folder / "started"]
    assert wait_for(lambda: all(f.exists() and f.read_text().strip() for f in files))
    return [int(f.read_text()) for f in files]


def command(folder: Path) -> list[str]:
    return ["sh", "-c", STARTS_ANOTHER.format(folder=folder)]


def test_time_up_ends_all(tmp_path):
    with pytest.raises(CodegenError, match=r"did not end within 1 s and was stopped\n  sh -c"):
        toolchain.run(command(tmp_path), 1)
    assert wait_for(lambda: not any(map(alive, processes(tmp_path))))
    assert not toolchain._running


@pytest.fixture
def interruptible():
    """Interrupts are Python's: shells start what runs behind them without one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_all(tmp_path, interruptible):
    def interrupt():
        processes(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        toolchain.run(command(tmp_path), 60)
    other.join()
    assert wait_for(lambda: not any(map(alive, processes(tmp_path))))


def test_an_interrupt_while_it_starts_ends_all(tmp_path, monkeypatch, interruptible):
    class Interrupted(subprocess.Popen):
        """A program that has started, and whose starter is interrupted before it has it in hand."""

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            processes(tmp_path)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    monkeypatch.setattr(toolchain.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        toolchain.run(command(tmp_path), 60)
    assert wait_for(lambda: not any(map(alive, processes(tmp_path))))


EXITS = """
import sys, threading, time
from turret.storage import toolchain
worker = threading.Thread(target=toolchain.run, args=({command!r}, 600), daemon={daemon})
worker.start()
sys.stdin.readline()
{then}
"""


@pytest.mark.parametrize(("daemon", "then"), [(True, "sys.exit(3)"), (False, "raise KeyboardInterrupt")])
def test_the_end_of_the_process_ends_all(tmp_path, daemon, then):
    program = EXITS.format(command=command(tmp_path), daemon=daemon, then=then)
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = processes(tmp_path)
    process.communicate(b"\n", timeout=60)
    assert wait_for(lambda: not any(map(alive, found)))


def test_a_forked_child_leaves_its_parents_compilers_alone(tmp_path):
    worker = threading.Thread(target=toolchain.run, args=(command(tmp_path), 60))
    worker.start()
    found = processes(tmp_path)
    child = os.fork()
    if child == 0:
        toolchain.stop_all()
        os._exit(0)
    os.waitpid(child, 0)
    assert all(map(alive, found))
    os.killpg(found[0], signal.SIGKILL)
    worker.join(20)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo wrong >&2; exit 1", r"failed on this test\n  sh -c .*\nwrong"),
        ("kill -9 $$", r"failed on this test \(ended by signal 9\)"),
        ("exit 0", "failed on this test"),
    ],
)
def test_a_compiler_that_makes_nothing_is_an_error_with_what_it_said(script, said, tmp_path):
    with pytest.raises(CodegenError, match=said):
        toolchain.build(["sh", "-c", script], tmp_path / "made", "this test")


def test_a_compiler_that_is_not_there_is_an_error_that_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    with pytest.raises(CodegenError, match=r"this test needs a C\+\+ compiler; tried no-such-compiler -x; install one"):
        toolchain.find_command("this test")
    with pytest.raises(CodegenError, match="could not run"):
        toolchain.run(["/no/such/compiler"], 1)
    monkeypatch.setenv("CXX", "g++ 'unended")
    with pytest.raises(CodegenError, match="check CXX"):
        toolchain.find_command("this test")


def test_several_run_side_by_side_and_a_failure_names_its_command(tmp_path):
    files = [tmp_path / name for name in "abc"]
    waits = [
        f"touch {own}.started; while [ ! -e {other}.started ]; do sleep 0.01; done; touch {own}"
        for own, other in zip(files, files[1:] + files[:1], strict=True)
    ]
    toolchain.build_all([["sh", "-c", text] for text in waits], files, "three")
    commands = [["sh", "-c", f"touch {files[0]}"], ["sh", "-c", "echo wrong >&2; exit 3"]]
    with pytest.raises(CodegenError, match=r"failed on two\n  sh -c 'echo wrong.*\nwrong"):
        toolchain.build_all(commands, files[:2], "two")


def test_where_one_takes_too_long_all_are_ended(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(CodegenError, match="did not end within 1 s"):
        toolchain.run_all([command(folder) for folder in folders], 1)
    assert wait_for(lambda: not any(map(alive, [n for folder in folders for n in processes(folder)])))
