"""The options of graph capture; schedulers read those that say where a graph is cut."""

from __future__ import annotations

from turret.hooks.config import Option
from turret.hooks.hookspecs import hookimpl


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """Whether calls are recorded, where graphs are cut, and how many recordings are kept."""
    return (
        Option(
            name="cudagraphs",
            default=False,
            doc="record the launches of a call and replay them in later ones, on devices that can; "
            "the mode 'reduce-overhead' turns it on",
        ),
        Option(
            name="cudagraph_after_calls",
            default=0,
            doc="with cudagraphs off, calls of the same sizes after which a graph is recorded all the same, if it is "
            "recorded whole and a replay copies nothing; 0: never",
            low=0,
        ),
        Option(
            name="cudagraph_min_kernels",
            default=16,
            doc="with cudagraphs off, a graph of at least so many generated kernels, and of nothing else, is recorded "
            "after some calls, by a recording for calls of all sizes, which reserves no memory between them; 0: never",
            low=0,
        ),
        Option(
            name="direct_library_calls",
            default=True,
            doc="kernels of library calls that are in no recording are launched by themselves once a graph was called "
            "some times with the same sizes, which takes the host a quarter of the call's time; where a device can",
        ),
        Option(
            name="cudagraph_trees",
            default=True,
            doc="recordings share one memory pool a device; off: each has its own pool, and inputs are copied to it",
        ),
        Option(
            name="cudagraph_outputs",
            default="fresh",
            doc="where outputs of a replay lie: in fresh memory, or in the pool, where a later call overwrites them",
            choices=("fresh", "pool"),
        ),
        Option(
            name="cudagraph_split_ops",
            default=(),
            doc="ops that are left out of recordings, such as 'aten::bmm' or 'mylib::attention'",
        ),
        Option(
            name="cudagraph_collectives",
            default=False,
            doc="record collectives, too; for backends that queue them on a stream (NCCL), in all processes alike",
        ),
        Option(
            name="cudagraph_skip_dynamic_graphs",
            default=False,
            doc="record no graph that has dynamic sizes",
        ),
        Option(
            name="cudagraph_capture_sizes",
            default=(),
            item=int,
            doc="dynamic sizes that are recorded; a batch of another size is padded to the next of them, where each "
            "sample is treated by itself; none named: all sizes are recorded",
        ),
        Option(
            name="cudagraph_further_sizes_after_calls",
            default=8,
            doc="calls of the same sizes after which they are recorded, where two others of that graph are already and "
            "cudagraph_capture_sizes names none: a recording pays for itself where its sizes come again",
            low=1,
        ),
        Option(
            name="cudagraph_max_recorded_sizes",
            default=50,
            doc="sizes of one graph that are recorded, past which further ones run without a recording",
            low=1,
        ),
        Option(
            name="cudagraph_unexpected_rerecord_limit",
            default=128,
            doc="recordings that one graph is made again because its inputs moved, past which it runs without",
            low=0,
        ),
    )
