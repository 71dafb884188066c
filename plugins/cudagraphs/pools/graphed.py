"""A function that is recorded and replayed: what it knows of itself, whichever pool its recordings lie in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from turret.api import cudagraphs
from turret.api.cudagraphs import FunctionReport, RecordingReport
from turret.errors import warn
from turret.hooks.products import BoxedCallable
from turret.plan import Plan
from turret.plan.executor import failed_op
from turret.plugins.cudagraphs.plans.padding import first_samples
from turret.plugins.cudagraphs.recording.any_size import ANY_SIZE, why_not
from turret.plugins.cudagraphs.recording.node import Node
from turret.plugins.cudagraphs.recording.recorder import Item, NotRecordable
from turret.plugins.cudagraphs.work import Key, RecordingDevice, Work

SIZES_AT_ONCE = 2
"""Sizes of a function that are recorded as soon as they come again."""


ANY_SIZE_RECORDINGS = 8
"""Recordings of a function that each serve all sizes with the same kernels; what fits none of them is recorded a size.

One dynamic size has about four sets of kernels (it is a multiple of 16, or is not, and is longer than the blocks that
hold rows as they were, or shorter than half of them); two sizes seldom meet in more than twice as many."""

SIZES_WITH_KERNELS_KNOWN = 1024
"""Sizes of which is known which of these recordings serves them."""

SIZES_TRIED = 3
"""Sizes of a function of which recording fails, before it is tried for others, too: a try costs several calls."""


@attrs.frozen
class Settings:
    """The options of one compilation; ``outputs`` is ``fresh``, ``pool`` or ``legacy``.

    ``after_calls``: how many calls of some sizes run as they are before one is recorded; ``further_after_calls``: how
    many where there are recordings of ``SIZES_AT_ONCE`` others.  ``unasked``: nobody asked for
    graph capture, so that what a replay would copy for is not recorded, and no warning says so.  ``reserves_nothing``:
    what no recording for calls of any sizes serves is not recorded, as another one holds memory between its replays.
    """

    outputs: str = "fresh"
    after_calls: int = 1
    further_after_calls: int = 8
    unasked: bool = False
    reserves_nothing: bool = False
    capture_sizes: tuple[int, ...] = ()
    max_recorded_sizes: int = 50
    rerecord_limit: int = 128


class Graphed:
    """A boxed callable that runs ``work`` by recordings where it can, and ``plain`` where not.

    ``manager_for(stream)`` gives what keeps recordings on a stream; ``tell(message)`` is told of each reason
    against a recording, ``tell(message, decisions)`` of each recording.
    """

    def __init__(
        self,
        work: Work,
        plain: BoxedCallable,
        recording_device: RecordingDevice,
        settings: Settings,
        manager_for: Callable[[int], Any],
        tell: Callable[..., None],
    ) -> None:
        self.work, self.plain, self.recording_device, self.settings = work, plain, recording_device, settings
        self._manager_for, self._tell, self._stream = manager_for, tell, recording_device.current_stream
        self._is_recording = recording_device.capture.is_recording
        self._managers: dict[int, Any] = {}
        self.title: Callable[[str], str] = str
        self.plan: Plan | None = None
        self.forget()
        cudagraphs.functions.add(self)

    def forget(self) -> None:
        """Drop all recordings, and what was learned."""
        self._managers.clear()
        self.kept: dict[int, dict[Key, list[Node]]] = {}
        """By stream, the recordings of a manager of fresh outputs, for a quick look."""
        self.calls_so_far: Counter[tuple[int, Key]] = Counter()
        """Of a stream and some sizes, those that ran as they are before one is recorded."""
        self.is_off = False
        """No call will be recorded, whatever its sizes."""
        self.sizes: set[Key] = set()
        self.moved: frozenset[int] = frozenset()
        self.copied: dict[Item, str] = {}
        """Results that recordings copy, and why: that is seldom another matter at another size, and costs recordings to
        find out."""
        self.refused: dict[Key, str] = {}
        self.plain_calls: Counter[str] = Counter()
        self.rerecordings: list[str] = []
        self.recordings = self.warm_ups = self.past_replays = self.padded_calls = 0
        self.nodes: list[Node] = []
        self.name = ""
        self.has_warned_of_sizes = False
        self.one_size = self._why_one_size()
        self.any_size_tries = 0
        self._fitting: dict[tuple[int, Key], Node] = {}
        """By stream and sizes, which of several recordings for any size they launch the kernels of."""

    def _why_one_size(self) -> str:
        """Why a recording serves its sizes alone; empty where one serves all."""
        if self.settings.outputs != "fresh":
            return "outputs lie in the pool, in memory that fits the sizes of a recording"
        return "cudagraph_capture_sizes names those to record" if self.settings.capture_sizes else self.work.one_size

    @property
    def latest(self) -> Node | None:
        """The latest recording that is kept."""
        return self.nodes[-1] if self.nodes else None

    def __call__(self, args: list) -> list:
        if self.is_off:
            return self.plain(args)
        if self._is_recording(self.recording_device.index):
            return self.run_plainly(args, "it is called while somebody else records")
        stream = self._stream()
        manager = self._managers.get(stream)
        if manager is None:
            manager = self._managers[stream] = self._manager_for(stream)
        for n in self.work.states.read:
            args[n] = args[n].to(self.recording_device.device)
        if self.settings.capture_sizes:
            key = self.work.key(args)
            larger = self.work.padded_key(key, self.settings.capture_sizes)
            if larger is not None and larger != key:
                return self._run_padded(manager, args, key, larger)
        return manager.run(self, args)

    def _run_padded(self, manager: Any, args: list, key: Key, larger: Key) -> list:
        """Run a call as the first samples of a larger one."""
        given = list(args)
        args.clear()
        self.padded_calls += 1
        results = manager.run(self, self.work.padded(given, key, larger))
        return first_samples(self.work.shapes(key), results, given)

    def is_any_size(self, key: Key) -> bool:
        """Whether calls of some sizes are served by the recording that serves all."""
        return not (self.one_size or ANY_SIZE in self.refused or why_not(self.work, key))

    def takes_any_size(self, nodes: Sequence[Node]) -> bool:
        """Whether there may be one more recording for calls of any sizes, beside ``nodes``."""
        return len(nodes) < ANY_SIZE_RECORDINGS and self.any_size_tries < SIZES_TRIED

    def in_turn(self, nodes: Sequence[Node], stream: int, key: Key) -> Sequence[Node]:
        """Recordings for calls of any sizes, the one ahead that served these sizes before."""
        if len(nodes) < 2:
            return nodes
        known = self._fitting.get((stream, key))
        return sorted(nodes, key=lambda node: node is not known)

    def fits(self, node: Node, stream: int, key: Key) -> None:
        """Note that a recording for calls of any sizes served these."""
        if self._fitting.get((stream, key)) is not node:
            if len(self._fitting) >= SIZES_WITH_KERNELS_KNOWN:
                self._fitting.clear()
            self._fitting[stream, key] = node

    def not_any_size(self, reason: str, nodes: Sequence[Node]) -> None:
        """Note that a recording of all sizes could not be made beside ``nodes``; after some tries no more are made."""
        self.any_size_tries += 1
        if self.any_size_tries == SIZES_TRIED and not nodes:
            self.one_size, self.is_off = reason, self.settings.reserves_nothing
            self._tell(f"{self.work.name}: a recording serves its sizes alone: {reason}")

    def run_plainly(self, args: list, reason: str) -> list:
        """Run without a recording; the reason is on record, and said when it is new."""
        self.plain_calls[reason] += 1
        if self.plain_calls[reason] == 1:
            self._tell(f"{self.work.name} runs without a recording: {reason}")
        return self.plain(args)

    def reason_against(self, key: Key) -> str:
        """Why calls of some sizes are not recorded; empty where they are."""
        known = self.refused.get(key)
        if known is not None:
            return known
        settings = self.settings
        if settings.reserves_nothing:
            return "no recording for calls of any sizes serves it, and another would reserve memory"
        if settings.capture_sizes and key and not set(key) <= set(settings.capture_sizes):
            return f"sizes {key} are not among cudagraph_capture_sizes"
        if key not in self.sizes and len(self.sizes) >= settings.max_recorded_sizes:
            self._warn_of_many_sizes()
            return f"{len(self.sizes)} sizes are recorded (cudagraph_max_recorded_sizes)"
        return ""

    def _warn_of_many_sizes(self) -> None:
        """Say once what a program that asked for recordings can do about sizes that are too many."""
        if not (self.has_warned_of_sizes or self.settings.unasked):
            self.has_warned_of_sizes = True
            warn(
                f"graph capture: {self.name or self.work.name} was recorded for {len(self.sizes)} sizes, and runs "
                "without a recording at others. Pad its inputs to fewer sizes (cudagraph_capture_sizes names some that "
                "batches are padded to), or set cudagraph_skip_dynamic_graphs=True so that no graph of dynamic sizes "
                "is recorded, or raise cudagraph_max_recorded_sizes."
            )

    def too_often(self, nodes: Sequence[Node]) -> str:
        """Why a call that these recordings do not fit is not recorded once more; empty where it is."""
        if len(nodes) <= self.settings.rerecord_limit:
            return ""
        return f"it was recorded {len(nodes)} times (cudagraph_unexpected_rerecord_limit)"

    def first_replay(self, node: Node, nodes: list[Node], args: list, replay: Callable[..., list | None]) -> list:
        """Keep a recording that was just made among ``nodes``, and run the call by ``replay(self, node, args)``."""
        nodes.insert(0, node)
        results = replay(self, node, args)
        if results is None:
            nodes.remove(node)
            error = NotRecordable("a replay does not fit the call that was recorded")
            return self.run_instead(node.key, error, args)
        return results

    def run_instead(self, key: Key, error: Exception, args: list) -> list:
        """Run a call of which recording failed; if that is well, calls of these sizes are recorded no more."""
        reason = f"recording failed: {type(error).__name__}: {error}".removeprefix("recording failed: NotRecordable: ")
        op = failed_op(error)
        if op:
            reason += f" (in {op}, which cudagraph_split_ops=({op!r},) leaves out of recordings)"
        error.with_traceback(None)  # its frames hold memory of the pool
        results = self.plain(args)
        self.refuse(key, reason)
        self.plain_calls[reason] += 1
        return results

    def refuse(self, key: Key, reason: str) -> None:
        """Record calls of some sizes no more, with one warning; where it never succeeds, calls of no sizes."""
        self.refused[key] = reason
        message = f"{self.work.name} runs without a recording: {reason}"
        gives_up = not self.recordings and len(self.refused) >= SIZES_TRIED
        self._tell(f"{message}; it is recorded for no other sizes either" if gives_up else message)
        if self.settings.unasked:
            self.is_off = not key or gives_up
        else:
            self.is_off = gives_up
            warn(f"graph capture: {message}")

    def is_warm(self, key: Key, stream: int) -> bool:
        """Whether calls of some sizes ran often enough for the next one to be recorded."""
        return self.calls_so_far[stream, key] >= self._calls_before(key)

    def _calls_before(self, key: Key) -> int:
        """How many calls of some sizes run as they are first.

        A recording costs several calls: where sizes are many, it is made of those that come again and again.
        """
        settings = self.settings
        if settings.capture_sizes or key in self.sizes or len(self.sizes) < SIZES_AT_ONCE:
            return settings.after_calls
        return max(settings.after_calls, settings.further_after_calls)

    def prepare(self, key: Key, stream: int, into: bool) -> None:
        """Before the last call of some sizes that is not recorded: load what recording the next would load."""
        if self.calls_so_far[stream, key] + 1 < self._calls_before(key):
            return
        self.name = self.name or self.title(self.work.name)
        try:
            self.work.prepare(into)
        except Exception as error:
            self.refuse(key, f"loading it failed: {type(error).__name__}: {error}")

    def warmed_up(self, key: Key, stream: int) -> None:
        """Note that a call of some sizes has run as it is."""
        self.calls_so_far[stream, key] += 1
        self.warm_ups += 1

    def check_copies(self, node: Node) -> None:
        """Raise ``NotRecordable`` where nobody asked for recordings, and replays of this one copy."""
        if self.settings.unasked and node.bytes_copied:
            reason = next(iter(node.recorded.pinned.values())).reason
            raise NotRecordable(f"a replay would copy {node.bytes_copied} bytes ({reason}); cudagraphs=True allows it")

    def note(self, node: Node, why: str) -> None:
        """Note a recording; ``why`` there is another one for the same sizes, else empty."""
        self.recordings += 1
        if not node.any_size:
            self.sizes.add(node.key)
        self.nodes.append(node)
        if why:
            self.rerecordings.append(why)
        again = f" again ({why})" if why else ""
        self._tell(f"{self.work.name} recorded{again}: " + "; ".join(map(str, node.decisions)), node.decisions)

    def drop(self, node: Node) -> None:
        """Forget a recording; its replays stay counted."""
        self.past_replays += node.tally.replays
        if node in self.nodes:
            self.nodes.remove(node)
        self._fitting = {place: kept for place, kept in self._fitting.items() if kept is not node}

    def statics_that_moved(self, nodes: Sequence[Node], args: Sequence[Any]) -> frozenset[int]:
        """Static inputs that lie elsewhere than in some recording: they are patched from now on."""
        found = {
            n
            for node in nodes
            for n, address in node.inputs.fixed.items()
            if n in self.work.static and n not in node.inputs.pooled and args[n].data_ptr() != address
        }
        self.moved |= found
        return self.moved

    def reported(self) -> FunctionReport:
        return FunctionReport(
            name=self.work.name,
            title=self.name or self.work.name,
            role=self.work.role,
            device=str(self.recording_device.device),
            outputs=self.settings.outputs,
            warm_ups=self.warm_ups,
            recordings=self.recordings,
            replays=self.past_replays + sum(n.tally.replays for n in self.nodes),
            sizes=len(self.sizes),
            padded_calls=self.padded_calls,
            rerecordings=tuple(self.rerecordings),
            plain_calls=dict(self.plain_calls),
            any_size=sum(n.any_size for n in self.nodes),
            one_size=self.one_size,
            recorded=tuple(map(_told, self.nodes)),
        )


def _told(node: Node) -> RecordingReport:
    return RecordingReport(
        number=node.number,
        sizes=None if node.any_size else node.key,
        replays=node.tally.replays,
        why=node.why,
        decisions=tuple(map(str, node.decisions)),
        bytes_copied=node.bytes_copied,
        nodes=len(node.recorded.recording.nodes),
        patched_nodes=node.patched_nodes,
    )
