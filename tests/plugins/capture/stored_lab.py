"""Programs in files that are edited between two runs; a run takes the program anew, as another process would."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import turret
from turret.hooks.hookspecs import hookimpl


class Watch:
    """What capture and the cache reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.guards: list[Any] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind in ("cache_hit", "cache_miss", "cache_failure", "perf_hint", "fallback"):
            self.events.append((event.kind, event.stage, event.message))
        if event.kind == "product" and event.stage == "guards":
            self.guards.append(event.product)

    def of(self, stage: str) -> list[str]:
        """Hits and misses of a stage, in order."""
        return [k.removeprefix("cache_") for k, s, _ in self.events if s == stage and k in ("cache_hit", "cache_miss")]

    @property
    def failures(self) -> list[str]:
        """What the cache could not use or write."""
        return [message for kind, _, message in self.events if kind == "cache_failure"]

    @property
    def captures(self) -> list[str]:
        return self.of("capture")

    @property
    def reasons(self) -> list[str]:
        """Why captures were not found, or not kept."""
        return [m for kind, stage, m in self.events if stage == "capture" and kind in ("cache_miss", "perf_hint")]


class Programs:
    """Files in a folder, imported anew for each run, and a cache."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.folder, self.cache = folder / "programs", folder / "cache"
        self.folder.mkdir()
        self.names: set[str] = set()
        monkeypatch.syspath_prepend(str(self.folder))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(self, files: Mapping[str, str]) -> Any:
        """Write the files and import ``prog`` among them."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text("import torch\nfrom torch import nn\n" + text)
            self.names.add(name)
        for name in self.names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("prog")

    def compile(self, target: Callable, watch: Watch, **arguments: Any) -> Callable:
        options = {"cache_dir": str(self.cache), "on_error": "raise", **arguments.pop("options", {})}
        return turret.compile(target, plugins=[watch, *arguments.pop("plugins", ())], options=options, **arguments)

    def run(self, files: Mapping[str, str] | Any, *args: Any, **arguments: Any) -> Watch:
        """Take the program (or one that is loaded already), compile ``prog.make()``, call it, compare with eager.

        ``args`` are the call's; without any, ``prog.args()``.
        """
        program = self.load(files) if isinstance(files, Mapping) else files
        watch = Watch()
        torch.manual_seed(0)
        plain = program.make()
        torch.manual_seed(0)
        made = program.make()
        inputs = args or (program.args() if hasattr(program, "args") else (torch.linspace(-2, 2, 12).reshape(3, 4),))
        expected = plain(*inputs)
        got = self.compile(made, watch, **arguments)(*inputs)
        torch.testing.assert_close(got, expected)
        return watch
