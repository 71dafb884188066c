"""Plugins with planted faults, one each, that the conformance kit has to find."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import attrs
import torch

import turret
from turret.ir import Definition, Expr, LoopProgram, call, cast, rewrite
from turret.products import NodePlacement, Placement
from turret.signature import Mutation


class Correct:
    """A code generator that is the built-in one."""

    @turret.hookimpl
    def turret_codegen(self, schedule: Any, target: Any) -> Any:
        return turret.codegen(schedule, target=target)


class OnlyPlaces:
    """A placement, and nothing else: sines run eagerly."""

    @turret.hookimpl(wrapper=True)
    def turret_place(self, graph: Any) -> Any:
        placement = yield
        eager = {n.name: NodePlacement("eager", "asked for") for n in graph.module.graph.nodes if "sin" in n.name}
        return Placement({**placement.nodes, **{name: e for name, e in eager.items() if name in placement.nodes}})


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


class Rounded(Changed):
    """Products of floats go through half precision."""

    def change(self, node: Expr) -> Expr | None:
        if node.op != "mul" or not node.dtype.is_floating_point:
            return None
        return cast(cast(node, torch.float16), node.dtype)


class Hangs(Changed):
    """Does not come back from a program with an error function."""

    def change(self, node: Expr) -> Expr | None:
        if node.op == "erf":
            time.sleep(3600)
        return None


class Crashes(Changed):
    """Ends the process at a program with a hypotenuse."""

    def change(self, node: Expr) -> Expr | None:
        if node.op == "hypot":
            os.kill(os.getpid(), signal.SIGSEGV)
        return None


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
