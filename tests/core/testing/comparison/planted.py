"""Plugins with planted faults, one each, that the conformance kit has to find."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import attrs
import torch

import turret
from turret.hooks.products import NodePlacement, Placement
from turret.hooks.signature import Mutation
from turret.ir import Definition, Expr, LoopProgram, call, rewrite, walk
from turret.plan import Launch


class Correct:
    """A code generator that is the built-in one."""

    @turret.hookimpl
    def turret_codegen(self, schedule: Any, target: Any) -> Any:
        return turret.codegen(schedule, target=target)


class OnlyPlaces:
    """A placement, and nothing else: every call runs eagerly."""

    @turret.hookimpl(wrapper=True)
    def turret_place(self) -> Any:
        placement = yield
        return Placement(dict.fromkeys(placement.nodes, NodePlacement("eager", "asked for")))


class OnlyCompilesGraphs:
    """A graph compiler that runs the cluster that it is given."""

    @turret.hookimpl
    def turret_compile_graph(self, module: Any, scope: str) -> Any:
        return module if scope == "cluster" else None


class Changed:
    """Definitions with some nodes replaced by others."""

    @turret.hookimpl
    def turret_ir_pass(self, phase: str, product: Any) -> LoopProgram | None:
        if phase != "lowered":
            return None
        statements = [
            attrs.evolve(s, expr=rewrite(s.expr, replace=self.change)) if isinstance(s, Definition) else s
            for s in product.statements
        ]
        return attrs.evolve(product, statements=tuple(statements))

    def change(self, node: Expr) -> Expr | None:
        raise NotImplementedError


class WrongOp(Changed):
    """Maximum is minimum."""

    def change(self, node: Expr) -> Expr | None:
        return call("min", *node.args) if node.op == "max" else None


class AtKernels:
    """Looks at the operations of kernels."""

    @turret.hookimpl
    def turret_codegen(self, schedule: Any) -> None:
        roots = [root for kernel in schedule.kernels for store in kernel.stores for root in store.roots]
        self.look({node.op for root in roots for node in walk(root)})

    def look(self, operations: set[str]) -> None:
        raise NotImplementedError


class Hangs(AtKernels):
    """Does not come back from a kernel with a sigmoid."""

    def look(self, operations: set[str]) -> None:
        if "sigmoid" in operations:
            time.sleep(3600)


class Crashes(AtKernels):
    """Ends the process at a kernel with a sine."""

    def look(self, operations: set[str]) -> None:
        if "sin" in operations:
            os.kill(os.getpid(), signal.SIGSEGV)


class NoLaunches:
    """Plans that run no kernels."""

    @turret.hookimpl(wrapper=True)
    def turret_codegen(self) -> Any:
        plan = yield
        return attrs.evolve(plan, steps=tuple(step for step in plan.steps if not isinstance(step, Launch)))


class Garbage:
    """Float results are 7 everywhere."""

    @turret.hookimpl
    def turret_wrap_runtime(self, function: Any) -> Any:
        def run(args: list) -> list:
            results = function(args)
            return [v * 0 + 7 if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in results]

        return run


class Around:
    """What user code calls, with something around it."""

    @turret.hookimpl(wrapper=True)
    def turret_runtime(self, signature: Any) -> Any:
        run = yield
        return lambda *inputs: self.call(run, inputs, signature)

    def call(self, run: Any, inputs: tuple, signature: Any) -> Any:
        raise NotImplementedError


class LostMutation(Around):
    """Programs without gradients write to copies of their inputs."""

    def call(self, run: Any, inputs: tuple, signature: Any) -> Any:
        if signature.training or all(info.mutation is Mutation.NONE for info in signature.inputs):
            return run(*inputs)
        return run(*(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))


class WrongAlias(Around):
    """Results that view an input are copies."""

    def call(self, run: Any, inputs: tuple, signature: Any) -> Any:
        memory = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}

        def copied(value: Any) -> Any:
            shares = isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in memory
            return value.clone() if shares else value

        return tuple(map(copied, run(*inputs)))


class WrongDtype(Around):
    """Results in half types are float32."""

    def call(self, run: Any, inputs: tuple, signature: Any) -> Any:
        halves = (torch.bfloat16, torch.float16)
        results = run(*inputs)
        return tuple(v.float() if isinstance(v, torch.Tensor) and v.dtype in halves else v for v in results)
