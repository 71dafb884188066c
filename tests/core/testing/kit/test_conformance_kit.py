"""The conformance kit finds planted faults of every kind, shrinks them, and writes files that show them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.testing.comparison import planted
from turret.errors import PluginError
from turret.testing import Outcome, Report, conformance, object_of
from turret.testing.corpus.chooser import ListChooser, smaller_choices
from turret.testing.kit.levels import LEVELS, Settings
from turret.testing.kit.subject import Subject
from turret.testing.loops.programs import draw_loops

ROOT = Path(__file__).parents[4]
PLANTED = planted.__name__
PLUGIN = ("-p", "turret.testing.pytest_plugin")


def run_kit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest with the kit in a folder of its own."""
    found = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", "-q", *PLUGIN, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": found}
    )


def run_file(folder: Path, source: str, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    """A failure's file, by itself: without this process's import path."""
    path = folder / "failure.py"
    path.write_text(source)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and "tests" not in Path(path).parts)
    command = [sys.executable, str(path)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env=environment)


# -- backends that are right ---------------------------------------------------------------------------------------


def test_a_correct_code_generator_passes() -> None:
    counts = {"cases": 4, "programs": 1, "kernels": 4, "models": 1}
    report = conformance(plugins=[planted.Correct()], levels=["cases", "programs", "kernels", "models"], counts=counts)
    assert report.passed, str(report)
    assert {level: row["right"] for level, row in report.counts().items()} == counts


def test_a_plugin_that_only_places_passes_and_what_it_places_is_listed_as_eager() -> None:
    report = conformance(plugins=[planted.OnlyPlaces()], levels=["ops", "kernels"], counts={"ops": 0, "kernels": 1})
    (kernel,) = report.outcomes
    assert kernel.status == "skipped" and "turret_codegen" in kernel.message
    sine = check_item("ops", "sin:float32", planted.OnlyPlaces())
    assert (sine.status, sine.made) == ("eager", "eager") and "asked for" in sine.message


def test_a_plugin_that_only_compiles_graphs_passes_and_takes_what_is_right() -> None:
    sine = check_item("ops", "sin:float32", planted.OnlyCompilesGraphs())
    assert (sine.status, sine.made) == ("right", "compiler"), sine.message


def check_item(level: str, item: str, *plugins: object) -> Outcome:
    """One item of a level, in this process."""
    return LEVELS[level].check(item, Subject(plugins), Settings())


# -- planted faults ------------------------------------------------------------------------------------------------

FOUND = {
    "NoLaunches": ("kernels", "values"),
    "WrongOp": ("programs", "values"),
    "Garbage": ("programs", "values"),
    "LostMutation": ("cases", "input after the call 0: values"),
    "WrongAlias": ("cases", "aliasing"),
    "WrongDtype": ("programs", "dtype"),
}
"""Each fault with a level that finds it, and what it says."""


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.thorough
def test_a_planted_fault_is_found_and_its_file_shows_it_by_itself(name: str, tmp_path: Path) -> None:
    level, told = FOUND[name]
    report = conformance(plugins=[f"{PLANTED}:{name}"], levels=[level], counts={level: 60}, max_failures=1)
    (failure,) = report.failures
    assert failure.status == "wrong" and told in failure.message
    statements = [line for line in failure.source.splitlines() if line.startswith(("    v", "    x0."))]
    assert len(statements) <= 3, failure.source
    done = run_file(tmp_path, failure.source)
    assert done.returncode == 1 and "Mismatch: compiled and eager differ" in done.stderr, done.stderr
    assert told in done.stderr


def test_files_of_what_is_right_end_well(tmp_path: Path) -> None:
    failure = check_item("kernels", "seed0", f"{PLANTED}:NoLaunches")
    done = run_file(tmp_path, failure.source.replace(f"{PLANTED}:NoLaunches", f"{PLANTED}:Correct"))
    assert done.returncode == 0 and done.stdout.strip() == "as eager", done.stderr


def test_a_wrong_operation_of_torch_s_table_is_found_and_named() -> None:
    pytest.importorskip("expecttest", reason="torch's table of operations imports it")
    failure = check_item("ops", "maximum:float32", f"{PLANTED}:WrongOp")
    assert failure.status == "wrong"
    operations = Report("", (failure,)).operations()
    assert operations["maximum"]["status"] == "wrong"


def test_a_model_is_cut_down_to_the_part_that_is_wrong(tmp_path: Path) -> None:
    failure = check_item("models", "perceptron", f"{PLANTED}:Garbage")
    assert failure.status == "wrong"
    assert ", 0, 'cpu', '" in failure.source, "a part alone, without training"
    assert run_file(tmp_path, failure.source).returncode == 1


@pytest.mark.slow
def test_hangs_and_crashes_cost_their_items_and_are_shrunk_to_files(tmp_path: Path) -> None:
    plugins = [f"--turret-plugin={PLANTED}:{name}" for name in ("Hangs", "Crashes")]
    chosen = ("--turret-level=kernels", "--turret-count=kernels=30", "-k", "seed4 or seed6 or seed25")
    done = run_kit(tmp_path, *plugins, *chosen, "--turret-timeout=5", "--turret-shrink=6", "--turret-json=out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    statuses = {item["item"]: item["status"] for item in found["items"]}
    assert statuses == {"seed4": "crash", "seed6": "right", "seed25": "hang"}, done.stdout
    assert done.returncode == 1 and not found["passed"] and "planted.py" in done.stdout
    crash = (tmp_path / "turret_failures/failure_kernels_seed4.py").read_text()
    assert run_file(tmp_path, crash).returncode == -11
    hang = (tmp_path / "turret_failures/failure_kernels_seed25.py").read_text()
    assert "sin(" in crash and "sigmoid(" in hang
    whole = next(LEVELS["kernels"].candidates("seed4", Subject(), Settings()))
    choices = json.loads(crash.partition("ListChooser(")[2].partition(")")[0])
    assert (len(choices), choices) < (len(whole.made), list(whole.made)), "not shrunk"


def test_faults_of_hooks_are_met_as_they_must_be() -> None:
    report = conformance(plugins=[planted.Correct()], levels=["faults"])
    status = {outcome.item: outcome.status for outcome in report.outcomes}
    assert status.pop("turret_codegen hangs") == status.pop("turret_codegen crashes") == "skipped"
    assert status == dict.fromkeys(
        ["turret_codegen raises", "turret_codegen returns garbage", "plans without launches"], "right"
    ), str(report)


# -- pytest --------------------------------------------------------------------------------------------------------


def test_a_run_without_the_options_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert not {'torch', 'turret.testing.kit.worker'} & set(sys.modules)\n"
    )
    done = run_kit(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--turret-level", "ops,nothing"], "expected some of cases, ops, programs"),
        (["--turret-count", "programs=many"], "expected LEVEL=N"),
        (["--turret-count", "nothing=3"], "expected one of cases"),
        (["--turret-option", "dynamic"], "expected KEY=JSON"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    done = run_kit(tmp_path, f"--turret-plugin={PLANTED}:Correct", *arguments)
    assert done.returncode == 4 and told in done.stderr


def test_a_plugin_that_cannot_be_made_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = run_kit(tmp_path, f"--turret-plugin={PLANTED}:Nobody")
    assert done.returncode == 4 and f"no plugin '{PLANTED}:Nobody'" in done.stderr
    assert "INTERNALERROR" not in done.stdout


def test_plugins_are_named_as_module_and_object() -> None:
    assert object_of(f"{PLANTED}:Correct") is planted.Correct and object_of(f"{PLANTED}.Correct") is planted.Correct
    assert object_of(PLANTED) is planted
    for name in (f"{PLANTED}:Nobody", "no_such_module:Plugin", "no_such_module"):
        with pytest.raises(PluginError, match="no plugin"):
            object_of(name)


# -- parts ---------------------------------------------------------------------------------------------------------


def test_the_report_counts_by_level_and_by_operation() -> None:
    outcomes = (
        Outcome("ops", "add:float32", "right", made="kernels"),
        Outcome("ops", "add:bool", "eager", "a reason"),
        Outcome("cases", "input_written", "wrong", "lost", source="print(1)"),
    )
    report = Report("Plugin on cpu", outcomes)
    assert report.counts()["ops"] == {**report.counts()["cases"], "right": 1, "eager": 1, "wrong": 0}
    assert report.operations()["add"]["dtypes"] == {"float32": "right", "bool": "eager"}
    assert not report.passed and "print(1)" in str(report)
    assert json.loads(report.as_json())["levels"]["cases"]["wrong"] == 1


def test_choices_give_the_same_loops_again_and_become_simpler() -> None:
    chooser = ListChooser([5, 2, 3, 1, 4, 1, 0, 2])
    drawn = draw_loops(chooser, symbolic=False)
    again = draw_loops(ListChooser(chooser.made), symbolic=False)
    assert str(drawn.program()) == str(again.program())
    assert all((len(c), c) < (len(chooser.made), chooser.made) for c in smaller_choices(chooser.made))
