"""What the innermost loops of compiled C++ kernels do element by element, read from assembly (GCC, x86-64).

Loops are found in the graph of jumps.  One that is all vectors stores vector registers, calls functions of vectors
(``_ZGV...``) and has no arithmetic on first lanes.  Extents should be static multiples of 64, so that no loop is for
the rest, and rows long, so that the loops over them stay loops.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable, Iterator

import attrs
import networkx

from turret.plugins.codegen.cpp import CppKernel, find_compiler, translation_unit

_FUNCTION = re.compile(r"(turret_[0-9a-f]{16})(?:[.]\w+)*:")
_LABEL = re.compile(r"([.\w]+):")
_INSTRUCTION = re.compile(r"\t(?:notrack |lock |rep )?([a-z]\w+)\s*(.*)")
_ONE_ELEMENT = re.compile(
    r"v?(add|sub|mul|div|sqrt|min|max|rndscale|round|scalef|fn?m(add|sub)\d+|cmp(\w*)|u?comi)s[sd]"  # of the first lane
    r"|v?cvtt?(s[sdi]2\w+|\w+2s[sdi])q?"
    r"|vp?(extr|insr)[bwdq]"  # of a lane that is handled by itself
    r"|i?div[bwlq]|f[a-z]+"  # integer division; x87
)
_MACHINE = "-march=skylake-avx512"
"""What is compiled for, whatever the machine at hand: the same assembly everywhere, and nothing of it is run."""
_VECTOR = re.compile(r"%[xyz]mm\d")
_CALL_STACK = re.compile(r"\(%r[sb]p")


@attrs.define
class _Block:
    """Instructions without jumps among them, in their kernel's function; ``following``: labels that may come next."""

    function: str
    instructions: list[tuple[str, str]] = attrs.field(factory=list)
    following: list[str] = attrs.field(factory=list)


def readable() -> bool:
    """Whether this machine's compiler is one whose assembly is understood, and its C library has the vectors."""
    library, version = platform.libc_ver()
    if platform.machine() != "x86_64" or library != "glibc" or find_compiler().kind != "gcc":
        return False
    return tuple(map(int, version.split("."))) >= (2, 35)


def scalar_loops(kernels: Iterable[CppKernel], flags: str = "") -> dict[str, list[str]]:
    """By the function of each kernel: what its innermost loops do element by element; empty where all are vectors.

    The source is compiled as that of units is, but for one kind of machine, with ``flags`` behind.  A kernel without
    loops, where short ones are unrolled, is read as the body of one.
    """
    kernels = list(kernels)
    blocks = _blocks(_assembly(kernels, flags))
    found: dict[str, list[str]] = {kernel.function: [] for kernel in kernels}
    loops = list(_innermost(blocks))
    unrolled = found.keys() - {blocks[loop[0]].function for loop in loops}
    loops += [[label for label, block in blocks.items() if block.function == function] for function in unrolled]
    for loop in loops:
        function = blocks[loop[0]].function
        if function in found:
            found[function] += _by_element([i for label in loop for i in blocks[label].instructions])
    return found


def _assembly(kernels: Iterable[CppKernel], flags: str) -> str:
    compiler = find_compiler(further_flags=flags)
    command = [compiler.path, *compiler.arguments, *compiler.flags, _MACHINE, "-S", "-x", "c++", "-", "-o", "-"]
    done = subprocess.run(command, input=translation_unit(kernels), capture_output=True, text=True, check=True)
    return done.stdout


def _blocks(assembly: str) -> dict[str, _Block]:
    """The blocks of all functions, by label; those that begin behind a jump have labels made for them."""
    blocks: dict[str, _Block] = {}
    block, function, falls = _Block(""), "", False
    for line in assembly.splitlines():
        if label := _LABEL.fullmatch(line):
            name = label[1]
            if start := _FUNCTION.fullmatch(line):
                function = start[1]
            elif not name.startswith("."):
                function = name
            if falls:
                block.following.append(name)
            blocks[name] = block = _Block(function)
            falls = True
        elif found := _INSTRUCTION.match(line):
            what, operands = found.groups()
            if what.startswith("j") or what == "ret":
                block.following.append(operands)
                falls = what not in ("jmp", "ret")
                name = f"behind {len(blocks)}"
                if falls:
                    block.following.append(name)
                blocks[name] = block = _Block(function)
            else:
                block.instructions.append((what, operands))
    return blocks


def _innermost(blocks: dict[str, _Block]) -> Iterator[list[str]]:
    """The labels of each loop that has no loop inside it."""
    edges = [(label, to) for label, block in blocks.items() for to in block.following if to in blocks]
    graph = networkx.DiGraph(edges)
    pending = [graph]
    while pending:
        part = pending.pop()
        for component in networkx.strongly_connected_components(part):
            if len(component) == 1 and not part.has_edge(*2 * tuple(component)):
                continue
            entries = {to for at, to in graph.edges if to in component and at not in component}
            head = next(iter(sorted(entries) or sorted(component)))
            inside = part.subgraph(component - {head})
            if networkx.is_directed_acyclic_graph(inside):
                yield sorted(component)
            else:
                pending.append(inside)


def _by_element(instructions: list[tuple[str, str]]) -> list[str]:
    """The instructions of a loop that handle one element each; and a word if no others are there."""
    found = [f"{what} {operands}" for what, operands in instructions if _is_of_one_element(what, operands)]
    vectors = any(_VECTOR.search(operands) or what == "call" for what, operands in instructions)
    return found if found or vectors else ["no vectors"]


def _is_of_one_element(what: str, operands: str) -> bool:
    if what == "call":
        return "_ZGV" not in operands
    if _ONE_ELEMENT.fullmatch(what):
        return True
    target = operands.rsplit(", ", 1)[-1]
    is_store = "(" in target and not what.startswith(("cmp", "test", "prefetch")) and not _CALL_STACK.search(target)
    return is_store and (not _VECTOR.search(operands) or what in ("vmovss", "vmovsd", "movss", "movsd"))
