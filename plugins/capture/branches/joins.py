"""Where the two ways behind a conditional jump meet again."""

from __future__ import annotations

import functools
import types

from turret.plugins.capture.python.bytecode import Decoded, decode

_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


@functools.lru_cache(maxsize=1024)
def join_of(code: types.CodeType, jump: int) -> int | None:
    """The first instruction that both ways behind a jump come to, or the number of instructions for the return.

    Ways that end in a ``raise`` do not count.  None for the condition of a loop: one of the ways leads back to it.
    """
    return later_join_of(code, jump, jump)


@functools.lru_cache(maxsize=1024)
def later_join_of(code: types.CodeType, jump: int, join: int) -> int | None:
    """The first instruction that all ways from another one behind a jump come to; None for a loop around both."""
    decoded = decode(code)
    end = len(decoded.instructions)
    following = {n: _following(decoded, n) for n in range(end)}
    reached = _reached(following, join)
    if join == end or end not in reached:
        return None
    always = _on_all_ways(following, reached, end)
    behind = always[join] & ~(1 << join)
    later = next(n for n in reached if behind >> n & 1 and always[n] == behind)
    return None if jump in _reached({**following, later: ()}, *following[jump]) else later


def _following(decoded: Decoded, number: int) -> tuple[int, ...]:
    """The instructions that may come next, exceptions apart; one more than there are for a return."""
    instruction = decoded.instructions[number]
    if instruction.name in _RETURNS:
        return (len(decoded.instructions),)
    if instruction.name in _RAISES:
        return ()
    if instruction.name in _JUMPS:
        return (instruction.target,)
    return (number + 1,) if instruction.target < 0 else (number + 1, instruction.target)


def _reached(following: dict[int, tuple[int, ...]], *starts: int) -> set[int]:
    """The instructions themselves, and all that may come behind them."""
    found, pending = set(starts), list(starts)
    while pending:
        new = set(following.get(pending.pop(), ())) - found
        found |= new
        pending += new
    return found


def _on_all_ways(following: dict[int, tuple[int, ...]], reached: set[int], end: int) -> dict[int, int]:
    """For each instruction, those that all ways from it to a return go through, itself among them, as bits."""
    returns = {n for n in reached if end in _reached(following, n)}
    always = dict.fromkeys(returns, (1 << end + 1) - 1)
    always[end] = 1 << end
    order, changed = sorted(returns - {end}, reverse=True), True
    while changed:
        changed = False
        for number in order:
            common = -1
            for successor in following[number]:
                common &= always.get(successor, -1)
            found = common & always[number] | 1 << number
            if found != always[number]:
                always[number], changed = found, True
    return always
