"""Facts about the machine that compiled code depends on."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path


@functools.cache
def processor() -> str:
    """The instruction set that ``-march=native`` means here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted))
    return hashlib.sha256("\n".join([platform.machine(), *lines]).encode()).hexdigest()
