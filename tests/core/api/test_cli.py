"""The ``turret`` command."""

from __future__ import annotations

import io
import re

import pytest
import torch

import turret
from turret.api import cli, doctor
from turret.errors import CodegenError
from turret.hooks import plugin_manager
from turret.plan.launch import driver_library
from turret.storage import prebuilt
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.extension import Extension


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_plugins_lists_hooks_who_implements_them_and_from_where(capsys):
    assert cli.main(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    hooks = [line.partition(":")[0] for line in lines]
    assert {"turret_capture", "turret_partition", "turret_event"} <= set(hooks)
    assert "first result; Cut a joint graph" in lines[hooks.index("turret_partition")]
    row = lines[hooks.index("turret_partition") + 1]
    assert row.strip().startswith("turret.plugins.partition  (") and row.endswith(".py)")
    assert lines[hooks.index("turret_guard_filter") + 1].strip().startswith("nobody")
    assert all(any(name in line for line in lines) for name in plugin_manager.BUILTINS)


def test_cache_shows_its_size_and_clears_it(capsys, folder):
    ArtifactCache().put("ab" + "0" * 62, "role", {"file": b"1" * 3 * 2**20})
    assert cli.main(["cache"]) == 0
    assert f"{folder}: 1 entries, 3.0 MiB of at most 10240 MiB" in capsys.readouterr().out
    assert cli.main(["cache", "clear"]) == 0
    assert "removed 1 entries" in capsys.readouterr().out
    assert cli.main(["cache", "size"]) == 0
    assert "0 entries, 0.0 MiB" in capsys.readouterr().out


def test_cache_in_an_unusable_folder_is_one_clear_line(capsys, folder):
    folder.write_text("")
    assert cli.main(["cache"]) == 1
    assert "cannot be made" in capsys.readouterr().err


def test_doctor_says_what_works(capsys, folder):
    status = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    for name in ("torch", "C++ compiler", "OpenMP", "Python headers", "GPU", "Triton", "cache"):
        assert any(line.startswith(("ok     ", "missing", "absent ")) and f"  {name}: " in line for line in lines), name
    assert status == int(any(c.needed and not c.works for c in doctor.checks()))


def test_doctor_says_how_to_get_what_is_missing(capsys, folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    folder.write_text("")
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(lines) if "C++ compiler" in line)
    assert lines[at].startswith("missing") and "no-such-compiler" in lines[at + 1] and "install one" in lines[at + 1]
    at = next(n for n, line in enumerate(lines) if "  cache: " in line)
    assert lines[at].startswith("missing") and "TURRET_CACHE_DIR" in lines[at + 1]


def test_doctor_notices_a_compiler_that_runs_and_cannot_compile(capsys, folder, monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 99" && exit 0\necho "no cc1plus" >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "missing  C++ compiler" in out and "no cc1plus" in out


@pytest.fixture
def native_folder(tmp_path, monkeypatch):
    """A folder of prebuilt parts of its own, and a compiler that is quick."""
    monkeypatch.setattr(prebuilt, "folder", lambda: tmp_path / "prefix" / "native")
    monkeypatch.setattr(Extension, "build", lambda extension: extension.name.encode())
    monkeypatch.setattr(driver_library.DriverLibrary, "compile", lambda library: library.source.stem.encode())
    return tmp_path / "prefix" / "native"


PARTS = ("frame hook", "guard tree", "autograd nodes", "tensor maker", "kernel launcher", "graph patcher")


def _native_parts(capsys):
    """What ``doctor`` prints of the native parts: the line, and the one behind it."""
    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(lines) if "  native parts: " in line)
    return lines[at], lines[at + 1]


def test_build_makes_every_native_part_once_and_doctor_says_so(capsys, folder, native_folder):
    line, remedy = _native_parts(capsys)
    assert line.startswith("absent ") and "frame hook built at first use" in line and "turret build" in remedy
    for state in ("built", "there"):
        assert cli.main(["build"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [text.split(":")[0].split(maxsplit=1) for text in lines] == [
            [state, part] for part in PARTS
        ]  # fmt: skip
    contents = {path.name: path.read_bytes() for path in native_folder.glob("*/*")}
    assert contents == {
        f"_turret_{n}.so": f"_turret_{n}".encode() for n in ("frame_hook", "guard_tree", "nodes", "fresh_tensors")
    } | {
        "launcher.so": b"launcher",
        "graphs.so": b"graphs",
    }
    line, _ = _native_parts(capsys)
    assert line.startswith("ok ") and all(f"{n} prebuilt" in line for n in ("frame hook", "guard tree", "launcher"))


def test_build_removes_what_older_sources_left(capsys, native_folder):
    prebuilt.put("0" * 64, "_turret_frame_hook.so", lambda: b"old")
    (native_folder / ("1" * 64) / ".new-1").mkdir(parents=True)
    assert cli.main(["build"]) == 0
    assert "removed 2 libraries" in capsys.readouterr().out
    assert len(list(native_folder.iterdir())) == 6 and not (native_folder / ("0" * 64)).exists()


def test_build_goes_on_past_a_part_that_does_not_compile(capsys, native_folder, monkeypatch):
    def fail(extension):
        raise CodegenError("there are no headers")

    monkeypatch.setattr(Extension, "build", fail)
    assert cli.main(["build"]) == 1
    out, err = capsys.readouterr()
    assert [line.split(":")[0].split()[0] for line in err.splitlines()] == ["failed"] * 4 and "no headers" in err
    assert out.startswith("built    kernel launcher") and len(list(native_folder.iterdir())) == 2


def test_build_into_a_folder_that_cannot_be_written_is_one_clear_line(capsys, native_folder, monkeypatch):
    def never(extension):
        raise AssertionError("compiled before it was known that there is a place for it")

    monkeypatch.setattr(Extension, "build", never)
    native_folder.parent.write_text("")
    assert cli.main(["build"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(native_folder) in line and "run `turret build` as the user who installed" in line


@pytest.fixture
def debug_folder(folder, tmp_path, fresh):
    """What a compile of one graph writes."""
    options = {"cache": False, "debug_dir": str(tmp_path / "products")}
    turret.compile(lambda x: torch.softmax(x * 2, -1), options=options)(torch.ones(4, 8))
    return tmp_path / "products"


def _written(folder, stage):
    (found,) = folder.glob(f"*/*_{stage}_*.txt")
    return found


def _unsourced(text):
    """Without the lines of the program, which the text of a graph does not have."""
    return re.sub(r', source: "[^"]*"', "", text)


def test_run_stage_makes_of_a_debug_folders_text_what_the_compile_made(capsys, debug_folder):
    assert cli.main(["run-stage", "joint", str(_written(debug_folder, "capture"))]) == 0
    joint = _written(debug_folder, "joint")
    assert capsys.readouterr().out.rstrip() == joint.read_text()
    assert cli.main(["run-stage", "partition", str(joint)]) == 0
    assert capsys.readouterr().out.rstrip() == _written(debug_folder, "partition").read_text()
    assert cli.main(["run-stage", "lower", str(joint)]) == 0
    assert _unsourced(capsys.readouterr().out.rstrip()) == _unsourced(_written(debug_folder, "lower").read_text())
    assert cli.main(["run-stage", "schedule", str(_written(debug_folder, "lower"))]) == 0
    schedule = _written(debug_folder, "schedule")
    assert capsys.readouterr().out.rstrip() == schedule.read_text()
    assert cli.main(["run-stage", "codegen", str(schedule)]) == 0
    out = re.sub(r"\n  arch: .*", "", capsys.readouterr().out.rstrip())  # noted once the stage is over
    assert out.endswith(_written(debug_folder, "codegen").read_text())
    assert out.startswith(next(debug_folder.glob("*/*.cpp")).read_text().rstrip())


def test_run_stage_takes_options_and_standard_input(capsys, debug_folder, monkeypatch):
    text = _written(debug_folder, "lower").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert cli.main(["run-stage", "schedule", "-", "--option", "max_fusion_size=1"]) == 0
    assert "more than 1 definitions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "text", "says"),
    [
        ("schedule", "loop program p:\n  return %x +\n", "turret: line 2: given '+', expected ,"),
        (
            "joint",
            "loop program p:\n  return 1\n",
            "turret: expected the text of a captured graph; given a LoopProgram",
        ),
        ("lower", "graph g:\n  x: float32[2]  = input\n", "turret: line 2: the graph ends here, expected 'return ...'"),
        ("codegen", "loop program p:\n  return 1\n", "turret: expected a Schedule, the product of the stage before"),
        ("schedule", None, "which cannot be read as text"),
    ],
)
def test_run_stage_refuses_what_it_cannot_take_in_a_clear_line(capsys, folder, tmp_path, stage, text, says):
    if text is not None:
        (tmp_path / "file.ir").write_text(text)
    assert cli.main(["run-stage", stage, str(tmp_path / "file.ir")]) == 1
    assert says in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plugin"])
    assert "invalid choice" in capsys.readouterr().err
