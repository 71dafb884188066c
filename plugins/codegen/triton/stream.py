"""What is ahead of a kernel in its stream: segments that follow other kernels of the plan, and what those do not write.

The first kernel of a plan waits until all that was queued before has ended, and signals behind its wait that the next
may begin.  So whatever a program is given is there for all but the first, though the kernel ahead may still run.
"""

from __future__ import annotations

from turret.ir import CopyInto, Extern, LoopProgram, Schedule
from turret.ir.program import references
from turret.plan import Call, Copy, Launch
from turret.plan.builder import PlanDraft


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


def following_segments(draft: PlanDraft) -> frozenset[str]:
    """Segments with a kernel of an earlier one right ahead of them in the stream."""
    begins = {section.first for section in draft.plan.sections}
    follows, found = False, set()
    for number, step in enumerate(draft.plan.steps):
        if number in begins or isinstance(step, Call | Copy):
            follows = False
        if isinstance(step, Launch):
            if follows:
                found.add(step.function)
            follows = True
    return frozenset(found)
