"""The fastest configuration is chosen, remembered for its device and sizes, and refused ones are left out."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import torch

from tests.plugins.codegen.triton.kernel_samples import scale
from turret.ir import TensorDecl, size
from turret.plan.launch.table import Number, SlotPointer
from turret.plugins.codegen.triton import CompiledKernel, Scratch
from turret.plugins.codegen.triton.compilation import autotune
from turret.plugins.codegen.triton.compilation.autotune import Candidate, Tuner, sample
from turret.storage.artifact_cache import ArtifactCache

CUDA = torch.device("cuda:0")


def vector(name: str, length: object) -> TensorDecl:
    return TensorDecl(name, (length,), (1,), torch.float32, CUDA)


def candidates() -> list[Candidate]:
    kernel = scale(sizes=(), parameters=("x", "y"))
    return [
        ((kernel, config), CompiledKernel(f"key {config}", b"\x7fELF", kernel.name, config.num_warps, 0))
        for config in kernel.configs
    ]


class Timed(Tuner):
    """Takes the times of candidates from a list in place of a device; an infinite time is a refusal."""

    def __init__(self, folder: Path, times: list[float]) -> None:
        self.cache, self.device, self.device_name = ArtifactCache(folder), 0, "a device"
        self.times, self.timed = times, 0

    def _times(self, pairs: list[Candidate], tensors: list[TensorDecl], ends: dict[str, int]) -> list[float]:
        self.timed += 1
        return self.times


DECLARED = {"a": vector("a", 4096), "b": vector("b", 4096)}


def test_the_fastest_is_chosen_and_found_again_by_another_tuner(tmp_path: Path) -> None:
    first, second = Timed(tmp_path, [2.0, 1.0]), Timed(tmp_path, [1.0, 2.0])
    given = candidates()
    assert first.best(given, DECLARED) is given[1]
    assert second.best(given, DECLARED) is given[1] and second.timed == 0


@pytest.mark.parametrize("changed", ["device", "sizes"])
def test_another_device_or_size_is_timed_anew(tmp_path: Path, changed: str) -> None:
    given = candidates()
    Timed(tmp_path, [2.0, 1.0]).best(given, DECLARED)
    other = Timed(tmp_path, [1.0, 2.0])
    declared = DECLARED
    if changed == "device":
        other.device_name = "another device"
    else:
        declared = {**DECLARED, "a": vector("a", 8192)}
    assert other.best(given, declared) is given[0] and other.timed == 1


def test_what_the_device_refuses_is_not_chosen(tmp_path: Path) -> None:
    given = candidates()
    assert Timed(tmp_path, [math.inf, 5.0]).best(given, DECLARED) is given[1]


def test_where_sizes_are_symbolic_or_one_is_given_the_first_is_taken(tmp_path: Path) -> None:
    given, tuner = candidates(), Timed(tmp_path, [2.0, 1.0])
    assert tuner.best(given, {**DECLARED, "a": vector("a", size("s0"))}) is given[0]
    assert tuner.best(given[:1], DECLARED) is given[0]
    assert tuner.best(given, {"a": DECLARED["a"]}) is given[0]  # b is scratch that kernels share
    assert tuner.timed == 0


def test_groups_of_rows_are_equally_large_when_a_kernel_of_them_is_timed() -> None:
    ends = TensorDecl("ends", (4,), (1,), torch.int32, torch.device("cpu"))
    assert sample(ends, "cpu", 42).tolist() == [10, 21, 31, 42]
    assert sample(ends, "cpu").tolist() == [0, 0, 0, 0]


def test_memory_of_a_kernel_s_own_is_given_to_it_when_it_is_timed(tmp_path: Path) -> None:
    kernel = scale(
        sizes=(),
        grid=("7",),
        parameters=("x", "y", "z"),
        buffers=("a", "b", "a.sums"),
        scratch=(Scratch("a.sums", "6", "float32"),),
    )
    binary = CompiledKernel("key", b"\x7fELF", kernel.name, 4, 0, hidden_pointers=2, global_scratch=128)
    launch = autotune.launch_over(
        (kernel, kernel.configs[0]), binary, {"b": 1, "a": 0, "a.sums": 2, autotune.HIDDEN: 3}
    )
    assert launch.parameters == (*map(SlotPointer, (0, 1, 2, 3)), Number(0))
    assert binary.scratch_bytes((5, 2, 1)) == 1280
    assert attrs.evolve(binary, hidden_pointers=0).scratch_bytes((5, 2, 1)) == 0
