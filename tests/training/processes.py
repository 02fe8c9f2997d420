"""Real processes that work together as torchrun's do: over gloo, on this machine, with an end that is enforced."""

import os
import socket
import subprocess
import sys
import time
import traceback

import torch
import torch.multiprocessing as mp

from frontrank.training import distributed

STARTING = 120.0  # seconds that a process waits for another


def run(work, world, folder, *, then=None, timeout=300.0):
    """[(work(rank, world), then(rank, world))] of each process; none of them outlives this call.

    work, then: functions of a module. Text in place of what they give is the traceback of their failure
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    context = mp.get_context("spawn")
    started = [
        context.Process(target=_process, args=((work, then), rank, world, port, folder), daemon=True)
        for rank in range(world)
    ]
    for each in started:
        each.start()
    end = time.monotonic() + timeout
    try:
        for each in started:
            each.join(max(0.0, end - time.monotonic()))
        hanging = [rank for rank, each in enumerate(started) if each.is_alive()]
    finally:
        for each in started:
            each.kill()
            each.join()
    assert not hanging, f"processes {hanging} were still busy after {timeout} s"
    return [tuple(_found(folder / f"{rank}.{part}.pt") for part in range(2)) for rank in range(world)]


def torchrun_command(processes, *arguments):
    """The command of frontrank in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launcher, "-m", "frontrank", *map(str, arguments)]


def torchrun(processes, *arguments):
    """Run a command of frontrank in so many processes; its status, and what they print."""
    command, environment = torchrun_command(processes, *arguments), {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    return done.returncode, done.stdout + done.stderr


def _found(path):
    return torch.load(path, weights_only=False) if path.exists() else "nothing: the process ended before"


def _process(parts, rank, world, port, folder):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", FOLDER=str(folder))
    distributed.start("cpu", timeout=STARTING)
    for number, part in enumerate(parts):
        try:
            found = None if part is None else part(rank, world)
        except Exception:
            found = traceback.format_exc()
        torch.save(found, folder / f"{rank}.{number}.pt")
        if isinstance(found, str):
            os._exit(1)  # as a process that is killed: it takes leave of nobody
    distributed.stop()


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
