"""Runs a check in several processes that talk by gloo."""

from __future__ import annotations

import datetime
import os
import socket
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import multiprocessing


def in_processes(work: Callable[[int], None], count: int = 2) -> None:
    """``work(rank)`` in ``count`` new processes, which are one process group; fails where one of them does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_process, args=(work, rank, count, port)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * count, f"exit codes {codes}; what was raised is printed above"


def _process(work: Callable[[int], None], rank: int, count: int, port: int) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=120)  # for a process that waits for what another one does not call
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count, timeout=patience)
    try:
        work(rank)
        dist.barrier()  # the first process holds the store that the others still talk to
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads of gloo's that are still there as Python ends abort the process, eagerly too (torch 2.13)
