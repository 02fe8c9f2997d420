"""Signals are held back while a run saves itself, and are as before afterwards."""

import os
import signal
import threading

import pytest

from frontrank.training.loop import StopRequest

SAID = "\nstopping after this step, to save the run (again: stop at once) ...\n"


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks(number, capsys):
    before = handlers()
    with StopRequest() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
    assert handlers() == before
    assert capsys.readouterr() == ("", SAID)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_interrupts(second, capsys):
    before = handlers()
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
        assert stop.asked
    assert handlers() == before
    assert capsys.readouterr().err == SAID  # once


def test_handlers_come_back_after_an_error():
    before = handlers()
    stop = StopRequest()

    def run():
        with stop:
            assert handlers() == [stop._ask, stop._ask]
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        run()
    assert handlers() == before


def test_one_within_another():
    with StopRequest() as outer:
        with StopRequest() as inner:
            os.kill(os.getpid(), signal.SIGINT)
        assert (outer.asked, inner.asked) == (False, True)
        os.kill(os.getpid(), signal.SIGINT)
        assert outer.asked


def test_in_another_thread_nothing_changes():
    before, found = handlers(), []

    def work():
        with StopRequest() as stop:
            found.extend([handlers() == before, stop.asked])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, False]
