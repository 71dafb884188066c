"""GPU checks under compute-sanitizer's memcheck, which finds accesses outside of all memory that was allocated.

    python -m tests.gpu.memcheck [--only WORD[,WORD]] [--budget SECONDS]

Generated kernels run with torch's caching allocator off, so that each tensor is an allocation of its own, whose ends
the sanitizer knows; recorded graphs need that allocator, and run with it.  Checks take ten times as long and more:
without ``--only`` those run that have the most ways to address memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

KERNELS = (
    "row sum",
    "column sum",
    "softmax",
    "gather",
    "scatter",
    "cat and pad",
    "pooling",
    "empty",
    "misaligned_inputs",
)
RECORDINGS = ("few_recordings", "batches_are_padded", "random_numbers_go_on", "threads_replay_one")


def sanitizer() -> str:
    """Where compute-sanitizer is; raises ``FileNotFoundError`` where it is not."""
    roots = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *map(str, Path("/usr/local").glob("cuda-*"))]
    places = [f"{root}/{folder}" for root in roots if root for folder in ("bin", "compute-sanitizer")]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *places]))
    if found is None:
        raise FileNotFoundError("compute-sanitizer is not there; it comes with the CUDA toolkit (set CUDA_HOME)")
    return found


def command(only: str, budget: float) -> list[str]:
    """The checks whose names contain one of the words, under memcheck, which ends with 1 where it finds anything."""
    check = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "tests.gpu.check",
        "--skip-timing",
        "--only",
        only,
        "--budget",
        f"{budget:g}",
    ]
    return [
        sanitizer(),
        "--tool",
        "memcheck",
        "--target-processes",
        "application-only",
        "--report-api-errors",  # asking for one parameter too many says how many a kernel has
        "no",
        "--error-exitcode",
        "1",
        *check,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run checks whose name contains one of these, with commas between")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no further check starts")
    options = parser.parse_args()
    if options.only:
        return subprocess.call(command(options.only, options.budget))
    uncached = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    failed = subprocess.call(command(",".join(KERNELS), options.budget / 2), env=uncached)
    return subprocess.call(command(",".join(RECORDINGS), options.budget / 2)) or failed


if __name__ == "__main__":
    sys.exit(main())
