"""What ``import turret`` adds to ``import torch``, and which modules cost most of it.

    python -m tests.benchmarks.import_time --repeat 7

Each figure is a fresh process that imports torch first.  Names of the package load on first use, so the import is
counted together with the first ``turret.compile`` (the name, not a call).  Fails when the median of both is over
``--limit`` seconds, or when they pull in torch's own compile stack.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys

_PROBE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import turret
imported = time.perf_counter()
turret.compile
used = time.perf_counter()
modules = sorted(set(sys.modules) - before)
print(json.dumps({"import": imported - start, "first use": used - imported, "modules": modules}))
"""
_FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch")
_TRACE_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")


def probe() -> dict:
    """Seconds of ``import turret`` after torch and of the first ``turret.compile``, and the modules both loaded."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def costly(modules: set[str], count: int = 12) -> list[tuple[str, float]]:
    """The modules among ``modules`` with the largest own import time, in seconds."""
    command = [sys.executable, "-X", "importtime", "-c", "import torch, turret; turret.compile"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own = {m[4]: int(m[1]) / 1e6 for m in map(_TRACE_LINE.match, done.stderr.splitlines()) if m and m[4] in modules}
    return sorted(own.items(), key=lambda item: -item[1])[:count]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--limit", type=float, default=0.3, help="seconds")
    options = parser.parse_args(arguments)
    probe()  # fills the page cache and writes the .pyc files
    probes = [probe() for _ in range(options.repeat)]
    modules = set(probes[0]["modules"])
    median = statistics.median(p["import"] + p["first use"] for p in probes)
    imported = statistics.median(p["import"] for p in probes)
    print(f"import turret after torch: median of {options.repeat} {imported:.3f} s, with turret.compile {median:.3f} s")
    for name, seconds in costly(modules):
        print(f"  {seconds:.3f} s  {name}")
    forbidden = sorted(m for m in modules if m.startswith(_FORBIDDEN))
    if forbidden:
        print(f"imports torch's compile stack: {', '.join(forbidden[:5])} ({len(forbidden)} modules)")
    return 1 if median > options.limit or forbidden else 0


if __name__ == "__main__":
    sys.exit(main())
