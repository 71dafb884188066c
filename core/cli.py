"""The ``turret`` command: plugins, doctor, cache."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 where ``doctor`` misses something needed, or on a known error)."""
    parser = argparse.ArgumentParser(prog="turret", description="Inspect Turret's plugins, machine and cache.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plugins", help="hooks, who implements them, in which order, from where")
    commands.add_parser("doctor", help="what works on this machine, what is missing, how to get it")
    cache = commands.add_parser("cache", help="the artifact cache")
    cache.add_argument("action", choices=("size", "clear"), nargs="?", default="size")
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
    return _doctor()


def _plugins() -> int:
    from turret import plugin_manager

    for hook, rows in plugin_manager.describe(plugin_manager.default_manager()):
        print(hook)
        for name, file in rows:
            print(f"    {name}  ({file})")
        if not rows:
            print("    nobody")
    return 0


def _cache(action: str) -> int:
    from turret.artifact_cache import ArtifactCache

    cache = ArtifactCache()
    if action == "clear":
        print(f"removed {cache.clear()} entries from {cache.folder}")
    else:
        print(f"{cache.folder}: {len(cache.entries())} entries, {cache.size() / 2**20:.1f} MiB")
    return 0


def _doctor() -> int:
    from turret.doctor import checks

    missing = False
    for check in checks():
        print(f"{'ok     ' if check.works else 'missing'}  {check.name}: {check.detail}")
        if not check.works:
            print(f"         {check.remedy}")
            missing |= check.needed
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
