"""What is there for a kernel that begins while the one ahead of it in the stream still runs.

The first kernel of a segment waits until all that was queued before has ended, copies of inputs that are not aligned
among it, and signals behind its wait that the next may begin.  So whatever a program is given is there for all but it.
"""

from __future__ import annotations

from turret.ir import CopyInto, Extern, LoopProgram, Schedule
from turret.ir.program import references


def given_tensors(schedule: Schedule) -> frozenset[str]:
    """Inputs and constants of a program that it does not write; none where a kernel may have nothing to launch."""
    program = schedule.program
    if program.symbols or any(0 in decl.shape for decl in program.declarations().values()):
        return frozenset()
    given = {decl.name for decl in program.inputs if decl is not None} | program.constants.keys()
    return frozenset(given - _written(program) - set(schedule.memory.overwrites(program).values()))


def _written(program: LoopProgram) -> set[str]:
    """Inputs that a program writes to, or lets calls have that write to anything."""
    found = set(program.overwritten.values())
    for statement in program.statements:
        if isinstance(statement, CopyInto):
            found.add(statement.target)
        elif isinstance(statement, Extern) and statement.mutates:
            found |= {ref.name for ref in references((*statement.args, statement.kwargs))}
    return found
