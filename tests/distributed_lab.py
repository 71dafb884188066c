"""Runs a check in several processes that talk by gloo."""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import multiprocessing


def in_processes(work: Callable[[int], None], count: int = 2) -> None:
    """``work(rank)`` in ``count`` new processes, which are one process group; fails where one of them does."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        meeting = f"file://{folder}/store"  # a port that was free may be taken by others before it is used
        processes = [context.Process(target=_process, args=(work, rank, count, meeting)) for rank in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=600)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
    assert codes == [0] * count, f"exit codes {codes}; what was raised is printed above"


def _process(work: Callable[[int], None], rank: int, count: int, meeting: str) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=120)  # for a process that waits for what another one does not call
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count, timeout=patience)
    try:
        work(rank)
        dist.barrier()  # whoever ends early takes its connections with it
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads of gloo's that are still there as Python ends abort the process, eagerly too (torch 2.13)
