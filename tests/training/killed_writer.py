"""Run as a script: writers of checkpoints are killed (SIGKILL), at chosen calls or from outside at any moment.

After each kill the newest checkpoint must load, agree with itself, and be no older than the last one acknowledged.
Prints how many kills there were and how many checkpoints; a failure is an exception. The children are forked, so that
torch is imported once.
"""

import os
import random
import signal
import sys
import time

import torch

from frontrank.training import checkpoints
from frontrank.training.checkpoints import latest_checkpoint, read_state, save_checkpoint

MOMENTS = ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "open"), (checkpoints._HashingWriter, "write"))


def state_of(step):
    return {"step": step, "weights": [torch.full((size,), float(step)) for size in (3, 5000, 40000)]}


def write_for_ever(folder, step, acknowledge):
    while True:
        step += 1
        save_checkpoint(folder, step, state_of(step))
        os.write(acknowledge, b"%d\n" % step)


def kill_at(owner, name, count, after):
    """Make this process kill itself before or after the count-th call of a function."""
    real, left = getattr(owner, name), [count]

    def deadly(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def kill_a_writer(folder, step, plan, patience):
    """Return the last step that a writer acknowledged before it was killed, or None."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        if plan is not None:
            kill_at(*plan)
        write_for_ever(folder, step, writer)
    os.close(writer)
    if plan is None:
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        acknowledged = lines.read().split()
    return int(acknowledged[-1]) if acknowledged else None


def check(folder, before, acknowledged):
    path = latest_checkpoint(folder)
    if path is None:
        assert before == 0
        assert acknowledged is None
        return 0
    state = read_state(path)
    assert state["step"] >= (acknowledged or before), (path, before, acknowledged)
    for weights in state["weights"]:
        assert weights.unique().tolist() == [float(state["step"])]
    return state["step"]


def main(folder, kills, seed):
    draw = random.Random(seed)
    plans = [(*moment, count, after) for moment in MOMENTS for count in (1, 3) for after in (False, True)]
    plans += [None] * kills
    draw.shuffle(plans)
    step = 0
    for plan in plans:
        step = check(folder, step, kill_a_writer(folder, step, plan, draw.uniform(0.0, 0.06)))
    save_checkpoint(folder, step + 1, state_of(step + 1))
    assert len(os.listdir(folder)) <= 2, os.listdir(folder)
    print(len(plans), "kills", step, "checkpoints")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
