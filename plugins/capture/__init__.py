"""Capture: graphs from running Python, by symbolic execution of bytecode.

Flow of one call of a compiled callable::

    frame hook   core/frames/frame_hook.cpp asks ``dispatch.on_frame`` about a frame, on threads inside a compiled
                 callable only; the root is the callable's own frame, others are reached through graph breaks
    dispatch     ``CompileUnit``s of the frame, guards checked in turn; a miss captures it (``recompile_limit`` times)
    trace        ``FrameTracer`` runs the root ``Frame``: ``opcodes`` over ``values``; calls are inlined; what touches
                 tensors runs on fake ones and is recorded in the graph (``graph``)
    rebuild      Python source: fetch inputs by source, call the graph, make values again, replay side effects, return
    break        for what is not followed: the trace is run again up to that step of the root, the rebuilt code runs
                 the instruction as Python and tail-calls a resume function (``breaks``, ``resume``)

Data:

- ``Value`` (values/): one object of the program; its ``source`` says where it was found, None for what the program
  made.  ``Constant``, ``Tensor`` (fx node and fake value), ``Symbolic`` (a size), containers, ``Instance``,
  ``Module``, functions, iterators, generators.  ``Lazy``: found but not looked at, so nothing is assumed of it.
- ``Source`` and ``Guard`` (core/frames): plain data; every look at an object leaves a guard.
- ``Effects``: objects from before that were changed; their final state is written back once, after the graph.
- ``TorchState``: grad mode, autocast: changed for real while tracing, recorded in the graph, taken back.

Nothing is guessed: what has no handler raises ``Unsupported`` and becomes a break, or, where a break is impossible,
the frame runs as Python; nothing has been executed by then.  A frame that raises runs as Python for the same
reason.  All of it is on record as events (``graph_break``, ``recompile``, ``fallback``).
"""

from turret.plugins.capture.dispatching.entry import CACHE_KEY as cache_key
from turret.plugins.capture.dispatching.entry import turret_capture
from turret.plugins.capture.options import turret_options

__all__ = ["cache_key", "turret_capture", "turret_options"]
