"""The measures that figures rest on, and the models in small."""

from __future__ import annotations

import argparse
import json
import math
import time

import pytest
import torch

from tests.benchmarks import bench, cold, cold_growth, device, library_calls, many_steps, measure, models


def test_relative_error_is_the_norm_over_all_tensors():
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert measure.relative_error([a, b], [a, b]) == 0
    assert measure.relative_error([a + torch.tensor([0.0, 0.5]), b], [a, b]) == pytest.approx(0.1)


def test_relative_error_is_infinite_for_missing_misshapen_and_nan_tensors():
    a = torch.ones(3)
    assert measure.relative_error([None], [a]) == math.inf
    assert measure.relative_error([torch.ones(3, 1)], [a]) == math.inf
    assert measure.relative_error([a * math.nan], [a]) == math.inf
    assert measure.relative_error([None], [None]) == 0


def test_interleaved_times_tell_slow_from_fast():
    steps = {"fast": lambda: time.sleep(0.001), "slow": lambda: time.sleep(0.003)}
    times = measure.interleaved(steps, seconds=0.3, slice_seconds=0.005)
    assert len(times["fast"]) == len(times["slow"]) >= 3
    assert 1.5 < min(times["slow"]) / min(times["fast"]) < 6


def test_seconds_are_of_the_clock_that_is_given():
    clock = iter(range(1 << 30)).__next__  # of which a second goes by whenever it is read
    read = {"never": lambda: None, "thrice": lambda: [clock() for _ in range(3)]}
    times = measure.interleaved(read, seconds=50.0, slice_seconds=1.0, clock=clock)
    assert set(times["never"]) == {1.0} and set(times["thrice"]) == {4.0}
    assert len(times["never"]) == len(times["thrice"]) == 10


def test_geometric_mean():
    assert measure.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(measure.geometric_mean([]))


@pytest.mark.parametrize("name", ["pointwise", "nested", "layer_norm", "dlrm", "lstm", "unet"])
def test_models_are_deterministic_and_trainable(name: str):
    first, second = models.build(name, training=True), models.build(name, training=True)
    losses = [w.loss(w.module(*w.training_inputs)) for w in (first, second)]
    assert torch.equal(*losses)
    losses[0].backward()
    assert all(p.grad is not None for p in first.module.parameters())


def test_unknown_models_are_named():
    for name in ("no_such_model", "unet-3"):
        with pytest.raises(KeyError, match="no model"):
            models.build(name)


def test_comparison_reports_time_and_error_of_each_system():
    results = bench.compare("nested", ["eager", "backend=eager"], training=True, seconds=0.2)
    assert [r.failure for r in results] == ["", ""]
    assert all(r.seconds > 0 and r.output_error == 0 and r.gradient_error == 0 for r in results)
    text = bench.report(results, ["eager", "backend=eager"], "eager")
    assert "geometric mean over eager, training, backend=eager" in text


def test_a_failing_system_is_reported_and_the_others_go_on():
    results = bench.compare("nested", ["eager", "backend=no_such_backend"], training=False, seconds=0.2)
    assert results[0].seconds > 0
    assert "InvalidBackend" in results[1].failure
    assert "InvalidBackend" in bench.report(results, ["eager", "backend=no_such_backend"], "eager")


def test_cold_child_measures_import_compile_and_step():
    figures = cold.child("nested", "backend=eager", training=False, threads=1)
    assert set(figures) == {"import", "compile", "step", "error"}
    assert figures["compile"] > 0
    assert figures["error"] == 0


def test_growth_is_the_slope_of_what_did_not_fail():
    seconds = {4: 1.0, 16: 3.4, 64: 13.0}
    results = [cold.ColdResult(f"equal_blocks-{n}", "training", "turret", cold_seconds=s) for n, s in seconds.items()]
    results.append(cold.ColdResult("equal_blocks-4", "training", "inductor", cold_seconds=9.0))
    results.append(cold.ColdResult("equal_blocks-16", "training", "inductor", failure="more than 600 s"))
    first, second = cold_growth.growths(results)
    assert first.seconds == seconds and first.slope == pytest.approx(0.2)
    assert second.seconds == {4: 9.0} and math.isnan(second.slope)
    assert "0.2" in cold_growth.report(results, [4, 16, 64])


@pytest.mark.parametrize("name", models.BLOCKS)
def test_blocks_come_in_any_number(name: str):
    workload = models.build(f"{name}-3", training=True)
    assert len(workload.module) == 3
    workload.loss(workload.module(*workload.training_inputs)).backward()
    first, second = ({tuple(p.shape) for p in block.parameters() if p.dim() == 2} for block in workload.module[:2])
    assert bool(first & second) == (name == "equal_blocks")


def test_the_device_benchmark_times_each_model_in_its_own_process(tmp_path, monkeypatch, capsys):
    arguments = ["--device", "cpu", "--tiny", "--models", "nested", "--kinds", "inference", "--systems", "eager"]
    arguments += ["--seconds", "0.1", "--json", str(tmp_path / "device.json")]
    monkeypatch.setattr("sys.argv", ["device.py", *arguments])
    assert device.main(arguments) == 0
    assert "geometric mean" not in capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "device.json").read_text())
    assert entry["failure"] == "" and entry["seconds"] > 0 and max(entry["output_errors"]) < 1e-2


def test_many_steps_compare_what_systems_learn(tmp_path, capsys):
    record = tmp_path / "steps.json"
    arguments = ["--device", "cpu", "--tiny", "--models", "gpt2,decode", "--systems", "eager", "--lengths", "3"]
    assert many_steps.main([*arguments, "--rounds", "2", "--pad-to", "12", "--json", str(record)]) == 0
    trained, decoded = json.loads(record.read_text())
    assert len(trained["losses"]) == 6 and trained["error"] == trained["state_error"] == 0
    assert (trained["kind"], decoded["kind"]) == ("training", "inference") and decoded["error"] == 0
    assert "gpt2" in capsys.readouterr().out


def test_many_steps_say_what_became_of_graphs_and_what_differs(tmp_path, capsys):
    record = tmp_path / "steps.json"
    arguments = ["--device", "cpu", "--tiny", "--models", "layer_norm", "--kinds", "training,inference"]
    arguments += ["--systems", "turret:reduce-overhead", "--steps", "3", "--tolerance", "1e-4"]
    assert many_steps.main([*arguments, "--json", str(record)]) == 0
    told = [entry for entry in json.loads(record.read_text()) if entry["system"] != "eager"]
    assert [entry["kind"] for entry in told] == ["training", "inference"]
    assert all(entry["replays"] == 0 and any("runs on cpu" in reason for reason in entry["reasons"]) for entry in told)
    assert "records no launches" in capsys.readouterr().out


def test_lengths_come_once_in_each_round_and_are_padded_up():
    options = argparse.Namespace(lengths=4, rounds=3, pad_to=[5], steps=0)
    found = many_steps.lengths_of(8, options)
    assert sorted(found[:4]) == [5, 5, 8, 8] and len(found) == 12
    options.pad_to = []
    assert all(
        sorted(found) == [2, 4, 6, 8] for found in zip(*[iter(many_steps.lengths_of(8, options))] * 4, strict=True)
    )


def test_a_library_call_costs_the_executor_less_than_the_library():
    found = library_calls.measured(torch.device("cpu"), 20)
    assert 0 < found["the executor alone"] < found["the library alone"] and found["the whole"] > 0


def test_many_steps_compile_whole_steps(tmp_path):
    record = tmp_path / "steps.json"
    arguments = ["--device", "cpu", "--tiny", "--models", "resnet50", "--systems", "eager+whole", "--steps", "2"]
    assert many_steps.main([*arguments, "--optimizer", "AdamW", "--clip", "1", "--json", str(record)]) == 0
    plain, whole = json.loads(record.read_text())
    assert plain["system"] == "eager" and whole["system"] == "eager+whole" and not whole["failure"]
    assert whole["losses"] == plain["losses"]
