"""What programs say to torch.compile by settings that mean something here: ``torch._dynamo.config`` and the names of
sources in ``torch.compiler.config``.

They are read where torch keeps them, without loading torch's compiler: nobody has set what is not loaded.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch.compiler.config

from turret.frames.sources import AttrSource, BoundSource, ItemSource, LocalSource, Source


def dynamo_setting(name: str) -> Any:
    """A value of ``torch._dynamo.config`` that is another one than torch's own default; None for one that is not."""
    module = sys.modules.get("torch._dynamo.config")
    entry = getattr(module, "_config", {}).get(name)
    value = getattr(module, name, None)
    return None if entry is None or value == entry.default else value


def dynamic_argument(given: bool | None) -> bool | None:
    """The argument ``dynamic``, or what the settings say in place of None."""
    if given is None and dynamo_setting("assume_static_by_default") is False:
        return True
    return False if given is None and dynamo_setting("automatic_dynamic_shapes") is False else given


def is_named_dynamic(source: Source) -> bool:
    """Whether ``torch.compiler.config.dynamic_sources`` or ``unbacked_sources`` name a source.

    They hold names or regular expressions with commas between them: torch's (``L['x']``), or Turret's own (``x``).
    """
    config = torch.compiler.config
    if not config.dynamic_sources and not config.unbacked_sources:
        return False
    patterns = [p.strip() for text in (config.dynamic_sources, config.unbacked_sources) for p in text.split(",")]
    names = (str(source), torchs_name(source))
    return any(p == name or re.fullmatch(p, name) for p in patterns if p for name in names)


def torchs_name(source: Source) -> str:
    """The name that torch.compile has for what a program reaches by names, attributes and items."""
    match source:
        case LocalSource(_, name):
            return f"L[{name!r}]"
        case ItemSource(BoundSource(_, dict() as scope), str() as key) if "__name__" in scope:
            return f"G[{key!r}]"
        case AttrSource(base, name):
            return f"{torchs_name(base)}.{name}"
        case ItemSource(base, key):
            return f"{torchs_name(base)}[{key!r}]"
    return str(source)
