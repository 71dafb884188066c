"""What a partitioner is made with: analysis of a joint graph, completion of a choice, and the two graphs that follow.

A partitioner is a ``turret_partition`` hook.  It chooses, among the values that the forward can compute, those that it
saves for the backward; what the backward needs beyond them it computes again::

    analysis = analyze(joint)
    wanted = [node for node in analysis.candidates if ...]
    return extract(joint, analysis, complete(analysis, wanted, costs(context)))

``complete`` adds what has to be saved for the backward to be right, so any choice is legal.  A call with several
results is no value by itself: its results (``operator.getitem`` of it) are, and naming the call means all of them.
``checkpoint_of`` tells what ``torch.utils.checkpoint`` asks of a node, which a partitioner may heed.
"""

from turret.graph.op_traits import is_view, tensor_bytes
from turret.graph.partitioning.analysis import JointAnalysis, analyze, is_library_call, is_savable, is_size, is_tensor
from turret.graph.partitioning.choice import bytes_saved, complete, costs, recomputed, verify
from turret.graph.partitioning.extract import extract
from turret.graph.partitioning.tags import Checkpoint, checkpoint_of

__all__ = [
    "Checkpoint",
    "JointAnalysis",
    "analyze",
    "bytes_saved",
    "checkpoint_of",
    "complete",
    "costs",
    "extract",
    "is_library_call",
    "is_savable",
    "is_size",
    "is_tensor",
    "is_view",
    "recomputed",
    "tensor_bytes",
    "verify",
]
