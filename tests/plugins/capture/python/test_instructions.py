"""Arguments of instructions mean what the interpreter's own disassembler says."""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
from pathlib import Path

from turret.plugins import capture
from turret.plugins.capture.interpreter import calls, opcodes_control
from turret.plugins.capture.python import instructions
from turret.plugins.capture.python.bytecode import decode


class Base:
    def method(self, *args, **kwargs):
        return args


class Derived(Base):
    def method(self, x, *rest, y=1, **named):
        first, *middle, last = rest
        if (x < y and first.size == last) or y is None:
            return super().method(*middle, **named), f"{x!r:>{y}}{y!s}{x}"
        x += last
        return [self.method(z) for z in rest], x**y, x[y], len(rest)


CODES = [
    f.__code__
    for owner in (Derived, calls.Caller, opcodes_control)
    for f in vars(owner).values()
    if inspect.isfunction(f)
]


def pairs(*names):
    """Instructions of some names, with the words of the disassembler."""
    found = []
    for code in CODES:
        words = {i.offset: i for i in dis.get_instructions(code)}
        found += [(code, i, words[i.offset]) for i in decode(code).instructions if i.name in names]
    return found


def test_names_that_are_looked_up():
    found = pairs("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
    assert len(found) > 100
    for code, instruction, told in found:
        number, null = instructions.name_of(instruction)
        name = code.co_names[number]
        assert name in told.argrepr.split(" + ")
        if instruction.name != "LOAD_METHOD":
            assert null == (told.argrepr != name)


def test_comparisons():
    found = pairs("COMPARE_OP")
    assert found
    for _, instruction, told in found:
        symbol, as_truth = instructions.comparison(instruction)
        assert told.argrepr == (f"bool({symbol})" if as_truth else symbol)


def test_operators():
    found = pairs("BINARY_OP")
    assert found
    for _, instruction, told in found:
        _, inplace = instructions.BINARY_OPERATIONS[instruction.arg]
        assert inplace == told.argrepr.endswith("=")


def test_every_opcode_has_a_count_of_caches():
    for code in CODES:
        for one, following in itertools.pairwise(dis.get_instructions(code)):
            assert following.offset == one.offset + 2 + 2 * instructions.CACHE_COUNT[one.opcode]


def test_what_versions_do_in_different_ways_is_told_in_one_module():
    root = Path(capture.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        names = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        found |= {str(path.relative_to(root))} if names & {"version_info", "hexversion"} else set()
    assert found == {"python/instructions.py"}
