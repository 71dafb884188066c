"""Facts about the machine that compiled code depends on."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path


@functools.cache
def processor() -> str:
    """The instruction set that ``-march=native`` means here."""
    text = _cpuinfo()
    if text is None:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted))
    return hashlib.sha256("\n".join([platform.machine(), *lines]).encode()).hexdigest()


@functools.cache
def processor_vendor() -> str:
    """The processor's vendor as it names itself (``AuthenticAMD``, ``GenuineIntel``); empty where that is not told."""
    return _told("vendor_id")


@functools.cache
def processor_family() -> int:
    """The number of the processor's family, as its vendor counts them; 0 where that is not told."""
    told = _told("cpu family")
    return int(told) if told.isdigit() else 0


def _told(wanted: str) -> str:
    lines = (line.partition(":") for line in (_cpuinfo() or "").splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == wanted), "")


def _cpuinfo() -> str | None:
    """What the kernel says of the processors; None where it says nothing."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
