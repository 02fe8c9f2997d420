import os
import signal
import subprocess
import sys
import time

import pytest
from frontrank.samples.folder import run_all, workers

import frontrank as fr
from frontrank.errors import InputError
from frontrank.samples import folder as processes
from tests.data.files import refusal

BARE = f"""
import sys, types
for name in ("frontrank", "frontrank.data"):  # without what they import, which takes seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = ["/".join([{fr.__path__[0]!r}, *name.split(".")[1:]])]
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].Tensor = object
"""


def square(number):
    time.sleep(0.02 * (number % 3))
    return number * number


def fail(message):
    raise InputError(message)


def mark(path):
    time.sleep(0.01)
    path.touch()


def ended(what):
    os.kill(os.getpid(), what)


def test_results_come_in_the_order_of_the_tasks():
    with workers() as pool:
        assert run_all(pool, [(square, (number,), 1) for number in range(20)], "squares") == [n * n for n in range(20)]
        assert run_all(pool, [], "nothing") == []


def test_work_is_done_elsewhere():
    with workers() as pool:
        found = set(run_all(pool, [(os.getpid, (), 1)] * 10, "looking"))
    assert os.getpid() not in found
    assert len(found) <= len(os.sched_getaffinity(0))


def test_an_error_of_a_task_is_raised_and_the_rest_is_left(tmp_path):
    def work():
        with workers() as pool:
            run_all(
                pool, [(fail, ("this file is wrong",), 1), *((mark, (tmp_path / str(n),), 1) for n in range(1000))], "x"
            )

    assert refusal(work) == "this file is wrong"
    assert len(list(tmp_path.iterdir())) < 1000


def test_a_worker_that_is_killed():
    def work():
        with workers() as pool:
            run_all(pool, [(ended, (signal.SIGKILL,), 1)], "dying")

    refusal(work, "was killed", "run this again")


def test_workers_leave_an_interrupt_to_their_parent():
    with workers() as pool:
        assert run_all(pool, [(ended, (signal.SIGINT,), 1), (square, (3,), 1)], "interrupted") == [None, 9]


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
def test_workers_go_when_their_parent_is_killed():
    code = """
import os, time
from frontrank.data import processes
from frontrank.samples.folder import run_all, workers
with workers() as pool:
    print(*set(run_all(pool, [(os.getpid, (), 1)] * 20, "")), flush=True)
    run_all(pool, [(time.sleep, (0.1,), 1)] * 10000, "")
"""
    with subprocess.Popen([sys.executable, "-c", BARE + code], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert pids
    until = time.monotonic() + 30
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_running, pids))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_machine_of_many_cores(monkeypatch):
    """Windows refuses more than 61 processes."""
    asked = []

    def pool(many, *_):
        asked.append(many)
        raise KeyError

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(128)))
    monkeypatch.setattr(processes, "ProcessPoolExecutor", pool)
    with pytest.raises(KeyError):
        workers().__enter__()
    assert asked == [61]
