"""Sequences of calls of recorded functions, on the machine in Python, against eager: what must hold in any order.

Programs and actions are drawn from a ``random.Random``, hypothesis's or a seeded one (``tests/fuzz/graph_calls.py``).
"""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter, deque
from typing import Any

import attrs
import torch

from tests.plugins.cudagraphs.recording_machine import ARITY, CALLS, WRITES, Machine, Program, Step, is_overwritten
from turret.plugins.cudagraphs.pools.fresh import FreshGraphs, LegacyGraphs
from turret.plugins.cudagraphs.pools.graphed import Graphed, Settings
from turret.plugins.cudagraphs.pools.trees import GraphTrees

LENGTHS = (4, 6, 16)
FURTHER_LENGTHS = (4, 6, 9, 13, 16)
"""Of calls of programs that are recorded once for all of them."""
MOST_HELD = 8


def draw_program(machine: Machine, r: random.Random, name: str, fails: Any) -> Program:
    """A program of a few steps, whose outputs are new values, inputs, or views of either."""
    inputs = r.randint(1, 3)
    names = [f"i{n}" for n in range(inputs)]
    static = [n for n in range(1, inputs) if r.random() < 0.4]
    steps = [Step("fail", "", ())] if r.random() < 0.3 else []
    calls = CALLS if r.random() < 0.5 else ()
    for number in range(r.randint(1, 5)):
        op = r.choice(("scale", "plus", "sum", "product", "sum", "add_", "copy", "copy_", "clear", *calls))
        sources = tuple(r.choice(names) for _ in range(ARITY[op]))
        target = r.choice(names) if op in WRITES else f"t{number}"
        steps.append(Step(op, target, sources, hidden=r.random() < 0.1))
        names += [] if op in WRITES else [target, f"{target}b"] if op == "two" else [target]
    made = [n for n in names if n[0] == "t"] or ["i0"]
    outputs = [r.choice(made) for _ in range(r.randint(1, 3))]
    outputs = [f"{o}[{r.randint(0, 2)}:]" if r.random() < 0.2 else o for o in outputs]
    outputs += [r.choice(("i0", "i0[1:]"))] if r.random() < 0.2 else []
    role = r.choice(("inference", "inference", "forward", "backward"))
    return Program(
        machine,
        inputs,
        steps,
        outputs,
        name=name,
        role=role,
        static=static,
        fails=fails,
        launches_only=r.random() < 0.6,
    )


@attrs.define(eq=False)
class Held:
    """A tensor that the user holds, and what it has to be; ``giver`` is the function that gave it out."""

    real: torch.Tensor
    expected: torch.Tensor
    giver: int | None = None

    @property
    def pooled(self) -> bool:
        return hasattr(self.real.untyped_storage(), "graph_memory")


class Play:
    """One sequence: functions, what the user holds of their outputs, and what happened how often."""

    def __init__(self, r: random.Random, outputs: str, threads: bool = True) -> None:
        self.r, self.outputs, self.threads = r, outputs, threads and outputs != "legacy"
        self.machine = Machine()
        self.recording_device = self.machine.recording_device()
        self.calls, self.marks = 0, 0
        self.failing = False
        self.counts: Counter[str] = Counter()
        self.held: list[Held] = []
        self.errors: deque[BaseException] = deque(maxlen=2)
        """What calls raised, which the program keeps, tracebacks and all."""
        self.manager = self.new_manager()
        limit = r.choice((1, 3, 128))
        sizes = r.choice((1, 50))
        self.settings = Settings(
            outputs,
            further_after_calls=r.choice((1, 4)),
            capture_sizes=r.choice(((), (), (6,), (8,))),
            max_recorded_sizes=sizes,
            rerecord_limit=limit,
        )
        count = r.randint(1, 3)
        self.programs = [draw_program(self.machine, r, f"f{n}", lambda: self.failing) for n in range(count)]
        self.functions = [self.graphed(p) for p in self.programs]
        self.weights: dict[tuple[int, int, int], Held] = {}

    def new_manager(self) -> Any:
        if self.outputs == "pool":
            return GraphTrees(self.recording_device, 0, lambda: self.calls, lambda: self.marks)
        return {"fresh": FreshGraphs, "legacy": LegacyGraphs}[self.outputs](self.recording_device, 0)

    def graphed(self, program: Program) -> Graphed:
        return Graphed(
            program, program.run, self.recording_device, self.settings, lambda stream: self.manager, lambda *told: None
        )

    def step(self) -> None:
        """One action, and a look at all that is held."""
        actions = {
            self.call: 12,
            self.drop: 2,
            self.write: 2,
            self.fail: 1,
            self.lose_the_device: 1,
            self.replace: 1,
            self.forget: 0.3,
            self.mark: 0.5,
        }
        if self.threads:
            actions[self.call_in_threads] = 1
        self.r.choices(list(actions), list(actions.values()))[0]()
        self.look()

    def look(self, may_be_overwritten: bool = False) -> None:
        """What is held is what eager says."""
        for held in list(self.held):
            if is_overwritten(held.real):
                assert self.outputs == "pool" and may_be_overwritten, "overwritten within a generation"
                self.counts["overwritten"] += 1
                self.held.remove(held)
            else:
                assert torch.equal(held.real, held.expected), (held.giver, held.real, held.expected)

    def make(self, length: int) -> Held:
        values = torch.tensor([self.r.randint(-9, 9) for _ in range(length + 1)])
        if self.r.random() < 0.15:
            return Held(values.clone()[1:], values[1:])  # 8 bytes past a multiple of 16
        return Held(values[1:].clone(), values[1:].clone())

    def draw_inputs(self, number: int, length: int, others: bool) -> list[Held]:
        """Inputs of a call: what is held, what was given just now, new tensors; weights lie still, mostly."""
        program, chosen = self.programs[number], []
        for n in range(program.inputs):
            if n in program.static:
                place = (number, n, length)
                if place not in self.weights or self.r.random() < 0.05:
                    self.weights[place] = self.make(length)
                chosen.append(self.weights[place])
                continue
            fitting = [h for h in self.held if h.real.shape == (length,) and (others or not h.pooled)]
            if fitting and self.r.random() < 0.6:
                chosen.append(self.r.choice(fitting))
            elif chosen and self.r.random() < 0.2:
                chosen.append(self.r.choice(chosen))
            else:
                chosen.append(self.make(length))
        return chosen

    def call(self) -> None:
        number = self.r.randrange(len(self.functions))
        length = self.r.choice(LENGTHS if self.programs[number].one_size else FURTHER_LENGTHS)
        begins = self.r.random() < 0.4
        if begins:
            self.calls += 1
        manager = self.manager
        goes_on = self.outputs != "pool" or (not begins and not self.marks)
        goes_on = goes_on or (self.outputs == "pool" and manager._seen == self.generation())
        goes_on = goes_on or (self.outputs == "pool" and not self.marks and manager._backward_pending)
        if self.outputs == "legacy":
            own = {id(node.recorded.recording) for node in self.functions[number].nodes}
            self.held = [h for h in self.held if id(getattr(h.real.untyped_storage(), "graph_memory", None)) not in own]
        inputs = self.draw_inputs(number, length, goes_on)
        self.run(number, inputs)
        self.look(not goes_on)

    def generation(self) -> tuple[str, int]:
        return ("marks", self.marks) if self.marks else ("calls", self.calls)

    def run(self, number: int, inputs: list[Held]) -> None:
        program = self.programs[number]
        try:
            outputs = self.functions[number]([h.real for h in inputs])
        except (ValueError, OSError) as error:
            self.counts[type(error).__name__] += 1
            self.errors.append(error)
            return
        expected = program.eagerly([h.expected for h in inputs])
        self.counts["calls"] += 1
        assert len(outputs) == len(expected)
        for found, right in zip(outputs, expected, strict=True):
            assert torch.equal(found, right), (program.steps, found, right)
            if self.r.random() < 0.5 and len(self.held) < MOST_HELD:
                self.held.append(Held(found, right, number))

    def drop(self) -> None:
        if self.held:
            self.held.remove(self.r.choice(self.held))

    def write(self) -> None:
        """The user's program writes to what it holds."""
        if self.held:
            held, value = self.r.choice(self.held), self.r.randint(1, 5)
            held.real.add_(value)
            held.expected.add_(value)

    def fail(self) -> None:
        """The next calls raise, where they run code of the host."""
        self.failing = True
        self.call()
        self.failing = False

    def lose_the_device(self) -> None:
        """A replay raises."""
        nodes = [node for function in self.functions for node in function.nodes]
        if nodes:
            recording = self.r.choice(nodes).recorded.recording
            recording.fails = True
            self.call()
            recording.fails = False

    def replace(self) -> None:
        """A function is gone, and compiled again; its recordings go with it."""
        number = self.r.randrange(len(self.functions))
        self.functions[number] = self.graphed(self.programs[number])
        if self.r.random() < 0.1:
            gc.collect()

    def forget(self) -> None:
        self.manager.forget()
        self.counts["forgotten"] += 1

    def mark(self) -> None:
        self.marks += 1

    def call_in_threads(self) -> None:
        """Two threads call at once; neither sees anything of the other, in the pool within a generation."""
        goes_on = self.outputs != "pool" or self.manager._seen == self.generation()
        goes_on = goes_on or (not self.marks and self.manager._backward_pending)
        jobs = [
            (n, self.draw_inputs(n, self.r.choice(LENGTHS), False)) for n in range(len(self.functions)) for _ in (0, 1)
        ]
        jobs = [(n, [Held(h.real.clone(), h.expected.clone()) for h in inputs]) for n, inputs in jobs]
        found: dict[int, Any] = {}

        def work(place: int) -> None:
            number, inputs = jobs[place]
            found[place] = self.functions[number]([h.real for h in inputs])

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for place, (number, inputs) in enumerate(jobs):
            expected = self.programs[number].eagerly([h.expected for h in inputs])
            assert all(torch.equal(a, b) for a, b in zip(found[place], expected, strict=True))
        self.counts["threads"] += 1
        self.look(not goes_on)

    def finish(self) -> Counter[str]:
        """What happened."""
        for function in self.functions:
            told = function.reported()
            self.counts["recordings"] += told.recordings
            self.counts["recorded again"] += len(told.rerecordings)
            self.counts["replays"] += told.replays
            self.counts["warm-ups"] += told.warm_ups
            self.counts["any size"] += told.any_size
            self.counts["plain"] += sum(told.plain_calls.values())
            kinds = [d.kind for node in function.nodes for d in node.decisions]
            self.counts.update(kinds)
            recorded = [node.recorded for node in function.nodes]
            self.counts["handed out"] += sum(len(each.returned) for each in recorded)
            self.counts["copied from calls"] += sum(len(each.copied) for each in recorded)
        return self.counts


def play(r: random.Random, outputs: str, length: int = 30, threads: bool = True) -> Counter[str]:
    """Play one sequence; raises where something is not as eager says.

    With ``threads`` some calls are made at once, and what is drawn after them depends on which came first.
    """
    game = Play(r, outputs, threads)
    for _ in range(length):
        game.step()
    return game.finish()
