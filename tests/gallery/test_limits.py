"""Bounded work: what is refused when, and that nothing is lost."""

import asyncio
import threading

import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.gallery.guard import BusyError, Gate, LateError, Limits, Turnstile


@pytest.mark.parametrize("name", ["upload_bytes", "uploads", "seconds", "workers", "depth"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None], ids=repr)
def test_limits_that_are_none(name, value):
    with pytest.raises((InputError, InputTypeError), match=f"limits.{name}"):
        Limits(**{name: value})


def test_depth_covers_the_results():
    with pytest.raises(InputError, match=r"limits\.depth"):
        Limits(results=2000)


def test_work_is_done():
    gate = Gate(1, 1, 5.0)
    assert asyncio.run(gate.run(lambda: 7)) == 7
    assert gate.inside == 0


def test_an_error_of_the_work_is_passed_on():
    gate = Gate(1, 1, 5.0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(gate.run(lambda: 1 // 0))
    assert gate.inside == 0


def test_a_time_out_of_the_work_itself_is_passed_on():
    def work():
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        asyncio.run(Gate(1, 1, 5.0).run(work))


def test_when_it_is_full_the_next_is_refused_and_late_work_keeps_its_place():
    gate, begun, go_on = Gate(1, 1, 0.05), threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(60)

    async def ask():
        while not begun.is_set():  # on a busy machine it may be late before it begins
            with pytest.raises(LateError):
                await gate.run(work)
        assert gate.inside == 1  # what is at work cannot be stopped
        waiting = asyncio.create_task(gate.run(work))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await gate.run(lambda: None)
        with pytest.raises(LateError):
            await waiting
        assert gate.inside == 1  # the one that waited is gone
        go_on.set()
        while gate.inside:
            await asyncio.sleep(0.01)
        gate._seconds = 60.0
        assert await gate.run(lambda: "again") == "again"

    asyncio.run(ask())


def test_a_closed_gate_refuses():
    gate = Gate(1, 1, 1.0)
    gate.close()
    with pytest.raises(BusyError):
        asyncio.run(gate.run(lambda: None))
    assert gate.inside == 0


def test_a_turnstile_lets_so_many_in():
    turnstile = Turnstile(1)
    with turnstile, pytest.raises(BusyError), turnstile:
        pytest.fail("was let in")
    with turnstile:
        pass
