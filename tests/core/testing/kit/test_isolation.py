"""Jobs in worker processes: a crash or a hang costs one job, and every other one is answered."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from turret.testing.kit import isolation
from turret.testing.kit.isolation import run_jobs


@pytest.fixture
def worker(tmp_path: Path) -> list[str]:
    """A worker that doubles numbers, prints noise, and dies or hangs when told to."""
    script = tmp_path / "worker.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from turret.testing.kit.isolation import serve

            def handle(job):
                print("noise")
                if job == "die":
                    os.abort()
                if job == "hang":
                    time.sleep(60)
                if job == "who":
                    return os.getpid()
                return 2 * job

            serve(handle, timeout=2.0)
            """
        )
    )
    return [sys.executable, str(script)]


def test_deaths_and_hangs_cost_one_job_each(worker: list[str]):
    answers: dict[int, int] = {}
    deaths: list[tuple[str, str]] = []
    run_jobs(
        worker,
        [1, 2, "die", 3, "hang", 4, 5],
        lambda job, answer: answers.update({job: answer}),
        lambda job, death: deaths.append((job, death.kind)),
        workers=2,
    )
    assert answers == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}
    assert sorted(deaths) == [("die", "crash"), ("hang", "hang")]


def test_jobs_are_read_lazily_so_that_a_run_can_stop(worker: list[str]):
    answers: list[int] = []

    def jobs():
        number = 0
        while len(answers) < 3:
            yield number
            number += 1

    run_jobs(worker, jobs(), lambda job, answer: answers.append(answer), lambda job, death: None, workers=1)
    assert answers == [0, 2, 4]


def test_a_worker_gives_way_to_another_after_many_jobs(worker: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "_JOBS", 2)
    found: list[int] = []
    run_jobs(worker, ["who"] * 5, lambda job, answer: found.append(answer), lambda job, death: None, workers=1)
    assert found[0] == found[1] != found[2] == found[3] != found[4]
