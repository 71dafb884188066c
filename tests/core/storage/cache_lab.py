"""Compiled programs over one cache folder, each run as a later process would make it, and ways to damage the folder."""

from __future__ import annotations

import functools
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import turret
from turret.hooks.hookspecs import hookimpl
from turret.storage.artifact_cache import FORMAT, process_cache

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Watch:
    """What a run reported: stages that ran, and what the cache said."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.cache: list[tuple[str, str, str]] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "stage_started":
            self.stages.append(event.stage)
        elif event.kind.startswith("cache_"):
            self.cache.append((event.kind.removeprefix("cache_"), event.stage, event.message))

    @property
    def failures(self) -> list[str]:
        return [message for kind, _, message in self.cache if kind == "failure"]


def scaled(x: torch.Tensor) -> torch.Tensor:
    """A program of its own code."""
    return torch.softmax(x * 2, -1)


class Net(nn.Module):
    """A model with weights, random numbers and a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.first(x)))).sum(-1)


def results(watch: Watch, **options: Any) -> list[torch.Tensor]:
    """A call of a function, one training step, and a call of the model in inference, compiled."""
    turret.reset()
    process_cache._entries.clear()
    settings = {"on_error": "raise", **options}
    torch.manual_seed(0)
    net = Net()
    found = [turret.compile(scaled, options=settings, plugins=[watch])(X)]
    found.append(turret.compile(net, options=settings, plugins=[watch])(X))
    found[-1].sum().backward()
    found += [p.grad for p in net.parameters()]
    net.eval()
    with torch.no_grad():
        found.append(turret.compile(net, options=settings, plugins=[watch])(X))
    return found


@functools.cache
def reference() -> list[torch.Tensor]:
    """What every run must give: without the cache, and as eager where no random numbers are drawn."""
    expected = results(Watch(), cache=False)
    torch.manual_seed(0)
    net = Net().eval()
    torch.testing.assert_close([expected[0], expected[-1]], [scaled(X), net(X)])
    return expected


def run(folder: Path, **options: Any) -> Watch:
    """All of it over one folder, as in a process of its own; it must be right."""
    watch = Watch()
    expected = reference()
    torch.testing.assert_close(results(watch, cache_dir=str(folder), **options), expected, rtol=0, atol=0)
    return watch


def entries(folder: Path) -> list[Path]:
    """Folders of the entries."""
    return sorted(p for p in (folder / FORMAT).glob("??/*") if p.is_dir())


def damage(draw: random.Random, folder: Path) -> str:
    """Damage an entry or the folder around it; says what was done."""
    found = entries(folder)
    if not found:
        return "nothing is there"
    entry = draw.choice(found)
    files = sorted(p for p in entry.iterdir() if p.is_file() and not p.is_symlink())
    name = draw.choice([*_ENTRY, *(_FILE if files else ())])
    if name in _ENTRY:
        _ENTRY[name](draw, entry, found)
    else:
        _FILE[name](draw, draw.choice(files), found)
    return f"{name} of {entry.name[:8]} with {[f.name for f in files]}"


def _rewrite(change: Callable[[random.Random, bytes], bytes]) -> Callable[..., None]:
    def apply(draw: random.Random, file: Path, found: list[Path]) -> None:
        content = file.read_bytes()
        file.unlink()  # as another writer would: not into what is mapped
        file.write_bytes(change(draw, content))

    return apply


def _flip(draw: random.Random, content: bytes) -> bytes:
    if not content:
        return b"x"
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def _swap(draw: random.Random, one: Path, found: list[Path]) -> None:
    other = draw.choice(found)
    if other != one:
        aside = one.parent / "aside"
        os.rename(one, aside)
        os.rename(other, one)
        os.rename(aside, other)


def _swap_files(draw: random.Random, one: Path, found: list[Path]) -> None:
    other = draw.choice(found) / one.name
    if other.is_file():
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1]), other.write_bytes(contents[0])


def _to_link(draw: random.Random, path: Path, found: list[Path]) -> None:
    moved = path.parent / f".moved{draw.randrange(10**9)}"
    os.rename(path, moved)
    path.symlink_to(draw.choice([moved, draw.choice(found), Path("/nowhere"), path]))


def _to_file(draw: random.Random, path: Path, found: list[Path]) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"")


def _to_folder(draw: random.Random, path: Path, found: list[Path]) -> None:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "something").write_bytes(b"")


def _to_pipe(draw: random.Random, path: Path, found: list[Path]) -> None:
    path.unlink()
    os.mkfifo(path)


def _open_to_all(draw: random.Random, path: Path, found: list[Path]) -> None:
    os.chmod(path, 0o777)


def _other_time(draw: random.Random, path: Path, found: list[Path]) -> None:
    moment = time.time() + draw.choice([-1, 1]) * 10 ** draw.randrange(1, 9)
    os.utime(path, (max(0, moment),) * 2)


_FILE: dict[str, Callable[..., None]] = {
    "cut": _rewrite(lambda draw, content: content[: draw.randrange(len(content) + 1)]),
    "empty": _rewrite(lambda draw, content: b""),
    "flip": _rewrite(_flip),
    "longer": _rewrite(lambda draw, content: content + b"\n"),
    "other": _rewrite(lambda draw, content: draw.choice([b"{}", b"[]", b"null", b"\xff", b"[" * 9999])),
    "remove file": lambda draw, file, found: file.unlink(),
    "swap files": _swap_files,
    "file to link": _to_link,
    "file to folder": _to_folder,
    "file to pipe": _to_pipe,
    "file open to all": _open_to_all,
}
_ENTRY: dict[str, Callable[..., None]] = {
    "remove entry": lambda draw, entry, found: shutil.rmtree(entry),
    "remove shard": lambda draw, entry, found: shutil.rmtree(entry.parent),
    "swap": _swap,
    "entry to link": _to_link,
    "shard to link": lambda draw, entry, found: _to_link(draw, entry.parent, found),
    "entry to file": _to_file,
    "shard to file": lambda draw, entry, found: _to_file(draw, entry.parent, found),
    "entry open to all": _open_to_all,
    "shard open to all": lambda draw, entry, found: _open_to_all(draw, entry.parent, found),
    "other time": _other_time,
}
