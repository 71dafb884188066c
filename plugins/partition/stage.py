"""Cutting a joint graph by the partitioner that the options name."""

from __future__ import annotations

import operator

from torch import fx

from turret.graph.op_traits import is_view
from turret.graph.partitioning.analysis import JointAnalysis, analyze, is_tensor
from turret.graph.partitioning.choice import costs, recomputed
from turret.graph.partitioning.extract import extract
from turret.hooks.context import CompileContext
from turret.hooks.products import JointGraph, PartitionedGraph
from turret.plugins.partition.budget import solve_with_budget
from turret.plugins.partition.min_cut import CutProblem, build_problem
from turret.plugins.partition.report import CutReport
from turret.plugins.partition.save_all import save_everything
from turret.plugins.partition.within import recompute_within


def partition(context: CompileContext, joint: JointGraph) -> PartitionedGraph:
    """Cut by minimum cut or by saving everything; an inference graph is the forward, and recomputes in
    backwards inside it."""
    partitioner, budget = context.config.partitioner, context.config.memory_budget
    if not joint.signature.training:
        module = recompute_within(context, joint)
        return PartitionedGraph(module, None, joint.signature, joint.num_forward_outputs, name=joint.name)
    analysis = analyze(joint)

    problem = build_problem(analysis, costs(context))
    everything = save_everything(analysis)
    saved = everything if partitioner == "save_all" else solve_with_budget(problem, budget)
    report = _report(partitioner, budget, problem, analysis, saved, everything)
    return extract(joint, analysis, saved, str(report))


def _report(
    partitioner: str,
    budget: float,
    problem: CutProblem,
    analysis: JointAnalysis,
    saved: frozenset[fx.Node],
    everything: frozenset[fx.Node],
) -> CutReport:
    again = [
        node
        for node in recomputed(analysis, saved)
        if is_tensor(node) and not is_view(node) and node.op == "call_function" and node.target is not operator.getitem
    ]
    return CutReport(
        partitioner=partitioner,
        bytes_saved=problem.bytes_saved(saved),
        bytes_saved_by_all=problem.bytes_saved(everything),
        tensors=sum(1 for node in saved if problem.memory[node] > 0),
        tensors_saved_by_all=sum(1 for node in everything if problem.memory[node] > 0),
        recomputed=len(again),
        budget=budget,
    )
