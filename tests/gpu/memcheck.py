"""GPU checks under compute-sanitizer's memcheck, which finds accesses outside of all memory that was allocated.

    python -m tests.gpu.memcheck [--only WORD[,WORD]] [--budget SECONDS] [--jobs N]

Generated kernels run with torch's caching allocator off, so that each tensor is an allocation of its own, whose ends
the sanitizer knows; recorded graphs need that allocator, and run with it.  Checks take ten times as long and more: they
are dealt out to processes side by side.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.cases import CASES
from tests.gpu.graph_checks import GRAPH_CHECKS
from tests.gpu.special import SPECIAL

NEEDS_TORCHS_ALLOCATOR = ("graph_capture", "memory")
"""Words for checks of generated kernels that record, or that ask the allocator what is in use."""


def kernels() -> list[str]:
    """The checks of generated kernels."""
    return [case.name for case in CASES] + [
        run.__name__ for run in SPECIAL if run.__name__ not in NEEDS_TORCHS_ALLOCATOR
    ]


def recordings() -> list[str]:
    """The checks of recorded graphs."""
    return [*NEEDS_TORCHS_ALLOCATOR, *(run.__name__ for run in GRAPH_CHECKS)]


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
        "--show-backtrace",  # that of the host keeps frames of Python, with the tensors that they hold
        "device",
        "--error-exitcode",
        "1",
        *check,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run checks whose name contains one of these, with commas between")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no further check starts")
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side")
    options = parser.parse_args()
    if options.only:
        return subprocess.call(command(options.only, options.budget))
    uncached = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    parts = [(part, uncached) for part in dealt(kernels(), max(1, options.jobs - options.jobs // 4))]
    parts += [(part, dict(os.environ)) for part in dealt(recordings(), max(1, options.jobs // 4))]
    run = [
        subprocess.Popen(
            command(",".join(f"={name}" for name in part), options.budget),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for part, env in parts
    ]
    failed = 0
    for (part, _), process in zip(parts, run, strict=True):
        text, _ = process.communicate()
        print(f"---- {', '.join(part)}\n{text}", flush=True)
        failed += process.returncode != 0
    print(f"memcheck: {len(parts) - failed} of {len(parts)} processes found nothing")
    return int(bool(failed))


def dealt(names: Sequence[str], hands: int) -> list[list[str]]:
    """The names in so many parts, none of them empty."""
    return [part for first in range(hands) if (part := list(names[first::hands]))]


if __name__ == "__main__":
    sys.exit(main())
