"""The ``turret`` command: plugins, doctor, build, cache, run-stage."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turret.hooks.products import Role


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    That is 1 where ``doctor`` misses something needed, where ``build`` could not build a part, or on a known error.
    """
    parser = argparse.ArgumentParser(prog="turret", description="Turret's plugins, machine, native parts and cache.")
    parser.add_argument("--version", action="version", version=f"turret {_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plugins", help="hooks, who implements them, in which order, from where")
    commands.add_parser("doctor", help="what works on this machine, what is missing, how to get it")
    commands.add_parser("build", help="build the native parts ahead of time, for this Python environment")
    cache = commands.add_parser("cache", help="the artifact cache")
    cache.add_argument("action", choices=("size", "clear"), nargs="?", default="size")
    stage = commands.add_parser("run-stage", help="one stage on a product that was written as text")
    stage.add_argument("stage", choices=("joint", "partition", "lower", "schedule", "codegen"))
    stage.add_argument("file", help="what a debug folder holds of the stage before; - is standard input")
    stage.add_argument("--role", choices=("forward", "backward"), help="which half of a joint graph lower takes")
    stage.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option, as in options=")
    options = parser.parse_args(arguments)
    from turret.errors import TurretError

    try:
        return _run(options)
    except TurretError as error:
        print(f"turret: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "plugins":
        return _plugins()
    if options.command == "cache":
        return _cache(options.action)
    if options.command == "build":
        return _build()
    if options.command == "run-stage":
        return _run_stage(options.stage, options.file, options.role, options.option)
    return _doctor()


def _plugins() -> int:
    from turret.hooks import plugin_manager

    print("Plugins are asked in the order shown; yours come before the built-ins.")
    for hook, rows in plugin_manager.describe(plugin_manager.default_manager()):
        print(f"{hook}: {_kind(hook)}")
        for name, file in rows:
            print(f"    {name}  ({file})")
        if not rows:
            print("    nobody (nothing is asked)")
    return 0


def _kind(hook: str) -> str:
    """How many are asked, and what for: the first line of the hook's documentation."""
    from turret.hooks import hookspecs

    spec = getattr(hookspecs, hook)
    asked = "first result" if spec.turret_spec["firstresult"] else "all"
    return f"{asked}; {(spec.__doc__ or '').strip().splitlines()[0]}"


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("turret")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _cache(action: str) -> int:
    from turret.storage.artifact_cache import ArtifactCache

    cache = ArtifactCache()
    if action == "clear":
        print(f"removed {cache.clear()} entries from {cache.folder}")
    else:
        print(f"{cache.folder}: {len(cache.entries())} entries, {cache.size() / 2**20:.1f} MiB{_limit()}")
    return 0


def _limit() -> str:
    """What the folder may grow to, by the environment."""
    from turret.hooks.config import from_environment

    limit = from_environment().cache_size_limit
    return f" of at most {limit / 2**20:.0f} MiB" if limit else ""


def _build() -> int:
    from turret.api.native_parts import parts
    from turret.errors import CodegenError
    from turret.storage import prebuilt

    failed, found = False, parts()
    for part in found:
        state = "built  " if part.prebuilt() is None else "there  "
        try:
            print(f"{state}  {part.name}: {part.prebuild()}", flush=True)
        except CodegenError as error:
            print(f"failed   {part.name}: {error}", file=sys.stderr)
            failed = True
    removed = prebuilt.prune({part.key for part in found})
    if removed:
        print(f"removed {removed} libraries of other sources")
    return int(failed)


def _doctor() -> int:
    from turret.api.doctor import checks

    missing = False
    for check in checks():
        state = "ok     " if check.works else "missing" if check.needed else "absent "
        print(f"{state}  {check.name}: {check.detail}{'' if check.needed or check.works else ' (optional)'}")
        if not check.works:
            print(f"         {check.remedy}")
            missing |= check.needed
    print("something that the CPU needs is missing" if missing else "all that compiling for the CPU needs is there")
    return int(missing)


def _run_stage(stage: str, file: str, role: Role | None, given: Sequence[str]) -> int:
    from turret.api import stages
    from turret.errors import OptionError
    from turret.hooks.products import CapturedGraph
    from turret.pipeline.graph_reader import parse

    product: Any = parse(_text_of(file))
    made: object
    options = dict(map(_option, given))
    match stage:
        case "joint":
            if not isinstance(product, CapturedGraph):
                raise OptionError(f"expected the text of a captured graph; given a {type(product).__name__}")
            made = stages.joint_graph(product, options=options)
        case "partition":
            made = stages.partition(product, options=options)
        case "lower":
            made = stages.lower(stages.partition(product, options=options), role, options=options)
        case "schedule":
            made = stages.schedule(product, options=options)
        case _:
            made = plan = stages.codegen(product, options=options)
            print(plan.source)
    print(made)
    return 0


def _text_of(file: str) -> str:
    from turret.errors import OptionError

    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"run-stage was given {file!r}, which cannot be read as text: {error}") from error


def _option(given: str) -> tuple[str, object]:
    """Name and value of ``NAME=VALUE``; a value that is no Python literal is a string."""
    name, _, text = given.partition("=")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


if __name__ == "__main__":
    sys.exit(main())
