"""A process for each run of a comparison: started, watched, stopped, and its end told in a line."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from frontrank.config import TrainConfig
from frontrank.jobs.comparison_run import INTERRUPTED
from frontrank.progress import progress
from frontrank.settings import as_yaml
from frontrank.training.signals import StopRequest

Task = Literal["train", "test", "frozen"]

_LOOK = 0.3  # seconds between looks at a run
_READ = 20_000  # bytes of its output that are looked at


def done_apart(
    task: Task,
    config: TrainConfig,
    target: Path,
    beside: Path,
    what: str,
    *,
    stop: StopRequest,
    held: tuple[int, ...] = (),
    quiet: bool = False,
) -> str | None:
    """Do a task of `comparison_run` in a process of its own: gives why it failed, or nothing; None if it was stopped.

    target: where it goes; beside: what its recipe (.yaml) and its output (.txt) are named after
    stop: handed on to the process, which saves its run; held: files that stay open as long as it lives
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    recipe, said = (beside.with_name(beside.name + ending) for ending in (".yaml", ".txt"))
    recipe.write_text(as_yaml(config), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "frontrank.jobs.comparison_run", task, str(recipe), str(target)]
    with said.open("a", encoding="utf-8") as output:
        start = output.tell()
        # Its stdin ends with this process; a signal of the terminal reaches it through here only.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, pass_fds=held
        )
    try:
        _watch(child, said, start, what if not quiet and sys.stderr.isatty() else "", stop)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
    if stop.asked or child.returncode == INTERRUPTED:
        return None
    return "" if child.returncode == 0 else reason(child.returncode, _tail(said, start))


def _watch(child: "subprocess.Popen[bytes]", said: Path, start: int, shown: str, stop: StopRequest) -> None:
    """Wait for the end, and draw how far it is; a stop that is asked for is handed on once."""
    told, done = False, 0
    tick: Callable[[float], None] | None = None
    with ExitStack() as bar:
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK)
                return
            if stop.asked and not told:
                told = True
                child.terminate()
            steps = re.findall(r"step (\d+)/(\d+)", _tail(said, start)) if shown else []
            if steps and tick is None:
                tick = bar.enter_context(progress(shown, int(steps[-1][1])))
            if steps and tick is not None:
                tick(int(steps[-1][0]) - done)
                done = int(steps[-1][0])


def _tail(path: Path, start: int) -> str:
    """The end of what was written to a file after a place."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - _READ))
        return file.read().decode("utf-8", "replace")


def reason(status: int, said: str) -> str:
    """Why a process failed, in a line: its signal, or the last thing it said.

    >>> reason(2, "step 1/4\\nthe gradient is not finite\\n"), reason(-9, "")
    ('the gradient is not finite', 'ended by the signal SIGKILL, perhaps for want of memory')
    """
    if status < 0:
        memory = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
        return f"ended by the signal {signal.Signals(-status).name}{memory}"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    return last[:300] or f"ended with status {status}, without a word"
