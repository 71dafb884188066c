"""Logs, the debug folder and the progress line show what was asked for, and nothing else."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time

import pytest
import torch

import turret
from turret.errors import OptionError
from turret.hooks.events import Event
from turret.plugins.observers import logs, progress

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def switched(monkeypatch):
    monkeypatch.setattr(logs, "_enabled", set())
    return turret.set_logs


def breaking(x):
    x = torch.sin(x)
    print("out of the graph")
    return torch.softmax(x @ x.t(), -1)


def run(*shapes, **options):
    compiled = turret.compile(breaking, options={"cache": False, **options})
    for shape in shapes or ((3, 5),):
        compiled(torch.randn(shape))


EXPECTED = {
    "graph_breaks": r"test_logs\.py:\d+ in breaking.*print",
    "guards": "TENSOR x ",
    "aot_graphs": r"aten\.sin",
    "schedule": "sin",
    "fusion": "fused|not fused|no ",
    "output_code": r'extern "C"|plan graph',
    "+place": "compiled",
    "+capture": "torch.sin|sin",
    "+load": "def run",
}


def test_several_artifacts_at_once(switched, capfd):
    switched("graph_breaks", "guards", recompiles=True)
    run((3, 5), (4, 6))
    written = capfd.readouterr().err
    assert set(re.findall(r"^\[turret \d+ (\S+)\]", written, re.M)) == {"graph_breaks", "guards", "recompiles"}


@pytest.mark.parametrize("artifact", EXPECTED)
def test_an_artifact_is_written_when_switched_on_and_not_after(artifact, switched, capfd):
    switched(artifact)
    run()
    written = capfd.readouterr().err
    assert set(re.findall(r"^\[turret \d+ (\S+)\]", written, re.M)) == {artifact}
    assert re.search(EXPECTED[artifact], written, re.S), written
    switched(**{artifact: False})
    turret.reset()
    run()
    assert "[turret" not in capfd.readouterr().err


def test_recompiles_say_what_did_not_hold(switched, capfd):
    switched(recompiles=True)
    run((3, 5))
    assert "[turret" not in capfd.readouterr().err
    run((3, 5), (4, 6))
    written = capfd.readouterr().err
    assert re.search(r"recompiles\].*in breaking\n.*tensor x: size \[4, 6\], expected \[3, 5\]", written, re.S), written


def test_hints_name_the_calls_that_run_eagerly_and_why(switched, capfd):
    switched("perf_hints")
    run()
    assert "[turret" not in capfd.readouterr().err
    compiled = turret.compile(lambda x: torch.linalg.qr(torch.complex(x, x))[1].abs(), options={"cache": False})
    compiled(torch.randn(3, 3))
    assert re.search(r"perf_hints\].*\d+ of \d+ calls of graph.* run eagerly.*complex", capfd.readouterr().err, re.S)


def test_every_artifact_of_the_issue_is_there():
    assert set(logs.ARTIFACTS) == {
        "graph_breaks", "recompiles", "guards", "aot_graphs", "schedule", "fusion", "output_code", "perf_hints",
        "cache", "cudagraphs",
    }  # fmt: skip


def test_other_callables_of_the_same_function_are_no_recompile(switched, capfd):
    switched(recompiles=True)
    run((3, 5))
    run((3, 5), partitioner="save_all")
    assert "[turret" not in capfd.readouterr().err


def test_unknown_artifacts_name_the_nearest(switched):
    with pytest.raises(OptionError, match=r"unknown log artifact 'graph_brakes'; did you mean 'graph_breaks'\?"):
        switched("graph_brakes")
    with pytest.raises(OptionError, match=r"'\+shedule'; did you mean '\+schedule'\?"):
        switched("+shedule")


def test_the_environment_switches_artifacts_on_and_refuses_unknown_ones(monkeypatch):
    monkeypatch.setattr(logs, "_enabled", set())
    monkeypatch.setenv("TURRET_LOGS", "graph_breaks, recompiles,guards,")
    logs._from_environment()
    assert logs._enabled == {"graph_breaks", "recompiles", "guards"}
    monkeypatch.setenv("TURRET_LOGS", "scedule")
    with pytest.raises(OptionError, match="did you mean 'schedule'"):
        logs._from_environment()


def test_the_debug_folder_has_every_product_of_every_stage(tmp_path):
    x = torch.randn(3, 5, requires_grad=True)
    options = {"debug_dir": str(tmp_path), "cache": False}
    turret.compile(breaking, options=options)(x).sum().backward()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for stage in set(logs.STAGES) - {"ir_pass"}:  # which has a product where somebody's pass changes one
        assert any(f"_{stage}_" in path.name for path in files), stage
    for role in ("forward", "backward"):
        assert any(path.suffix == ".cpp" and role in path.name for path in files)
    assert all(path.stat().st_size for path in files)
    events = next(path for path in files if path.name == "events.txt").read_text()
    assert "graph_break" in events and "print" in events


def test_nothing_is_written_without_a_debug_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run()
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "_line", progress._Line())


def compile_slowly(stages=1):
    progress.turret_event(Event("compile_started", 1, name="graph0"))
    for _ in range(stages):
        progress.turret_event(Event("stage_started", 1, stage="codegen", name="graph0.forward"))
        time.sleep(0.3)
    progress.turret_event(Event("compile_ended", 1, name="graph0"))


def test_a_long_stage_shows_a_line_on_a_terminal_and_takes_it_away(impatient, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    compile_slowly()
    text = terminal.getvalue()
    assert "turret: codegen of graph0.forward" in text
    assert text.endswith("\r\x1b[K")
    for thread in threading.enumerate():
        if thread.name == "turret-progress":
            thread.join(1)
    assert terminal.getvalue() == text


def test_there_is_no_line_where_there_is_no_terminal(impatient, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    compile_slowly()
    assert file.getvalue() == ""


def test_quick_compiles_show_no_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_line", progress._Line())
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    run()
    assert "turret:" not in terminal.getvalue()
    assert progress._line.under_way == 0


def test_a_compile_that_fails_ends_the_line(monkeypatch):
    from turret.hooks.hookspecs import hookimpl

    class Broken:
        @hookimpl
        def turret_schedule(self):
            raise RuntimeError("broken")

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_line", progress._Line())
    with pytest.raises(turret.TurretError):
        turret.compile(torch.sin, plugins=[Broken()])(torch.ones(3))
    assert progress._line.under_way == 0


def test_torchs_logs_switch_the_same_artifacts_on(switched, capfd):
    torch._logging.set_logs(graph_breaks=True, recompiles_verbose=True)
    try:
        run((3, 5), (4, 6))
    finally:
        torch._logging.set_logs()
    written = capfd.readouterr().err
    assert set(re.findall(r"^\[turret \d+ (\S+)\]", written, re.M)) == {"graph_breaks", "recompiles"}


def test_the_environment_gives_help(monkeypatch, capsys):
    monkeypatch.setattr(logs, "_enabled", set())
    monkeypatch.setenv("TURRET_LOGS", "help,guards")
    logs._from_environment()
    written = capsys.readouterr().err
    assert logs._enabled == {"guards"} and all(name in written for name in (*logs.ARTIFACTS, *logs.STAGES))


def test_recompiles_name_the_keys_that_differ_and_say_a_thing_once(switched, capfd):
    switched("recompiles")
    compiled = turret.compile(lambda x, d: x * sum(d.values()), backend="eager", options={"cache": False})
    for given in ({"a": 2}, {"a": 3, "b": 1, "c": 2}, {"b": 1, "a": 2}):
        compiled(torch.ones(2), given)
    written = capfd.readouterr().err
    assert "KEYS d: 'b', 'c' are new" in written and "KEYS d: 'c' is missing" in written
    assert written.count("'b' is new") == 1


def test_an_operation_that_fails_in_the_program_is_told_by_the_programs_error_alone(log_records):
    def program(x):
        return x @ torch.ones(5, 5)

    with pytest.raises(RuntimeError, match=r"cannot be multiplied|size mismatch|reduction dim") as caught:
        turret.compile(program, options={"cache": False})(torch.ones(2, 3))
    assert not [r for r in log_records if r.levelno >= logging.WARNING] and caught.value.__context__ is None
