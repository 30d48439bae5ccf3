"""Those who wait for one another: callers and batches, inserts and samples."""

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boonta.architectures import batching
from boonta.architectures.batching import Batcher, Closed, buckets
from boonta.replay.limiter import Limiter, Stalled


def batcher(minimum=4, maximum=8, deadline=0.05, present=100):
    return Batcher(maximum, deadline, lambda: min(minimum, present))


def asking(one, *rows):
    """Callers with so many rows each, and what they get."""
    got = {}

    def ask(i, n):
        try:
            got[i] = one.ask(f"caller {i}", n)
        except Closed as error:
            got[i] = type(error)

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in enumerate(rows)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)  # in this order
    return got, threads


def finished(threads):
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def answer(requests):
    for request in requests:
        request.answer = request.content
        request.ready.set()


def test_requests_are_answered_together():
    one = batcher(minimum=6, deadline=20.0)
    got, threads = asking(one, 2, 2, 2)
    requests = one.take(20)
    assert [request.rows for request in requests] == [2, 2, 2]
    answer(requests)
    finished(threads)
    assert got == {i: f"caller {i}" for i in range(3)}


def test_a_batch_goes_at_its_deadline():
    one = batcher(minimum=6, deadline=0.05)
    _, threads = asking(one, 2)
    requests = one.take(20)
    assert len(requests) == 1
    answer(requests)
    finished(threads)


def test_a_batch_does_not_wait_for_those_who_are_not_there():
    one = batcher(minimum=6, deadline=1000.0, present=2)
    _, threads = asking(one, 2)
    answer(one.take(20))
    finished(threads)


def test_a_batch_has_its_maximum():
    one = batcher(minimum=8, maximum=8, deadline=0.05)
    _, threads = asking(one, 3, 3, 3)
    first = one.take(20)
    assert sum(request.rows for request in first) == 6
    second = one.take(20)
    assert [request.rows for request in second] == [3]
    answer([*first, *second])
    finished(threads)


def test_nothing_is_taken_where_nobody_asks():
    assert batcher().take(0.1) == []


def test_a_request_that_is_left_over_waits_one_deadline(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = Batcher(2, 1000.0, lambda: 4)

    def ask(rows):
        with suppress(Closed):
            one.ask("", rows)

    for rows in (2, 1):
        threading.Thread(target=ask, args=(rows,), daemon=True).start()
        while not any(request.rows == rows for request in one._waiting):
            time.sleep(0.01)
    now[0] += 600
    taken = [one.take(0.0)]
    now[0] += 401
    waiting = threading.Thread(target=lambda: taken.append(one.take(0.0)), daemon=True)
    waiting.start()
    waiting.join(10.0)  # for ever, if its deadline began when the others were taken
    assert [request.rows for requests in taken for request in requests] == [2, 1]
    one.close()


def test_callers_go_when_it_closes():
    one = batcher(minimum=100, deadline=1000.0)
    got, threads = asking(one, 1, 1)
    one.close()
    finished(threads)
    assert set(got.values()) == {Closed}
    with pytest.raises(Closed):
        one.ask("late", 1)
    assert one.take(20) == []


def test_callers_go_when_it_closes_with_their_requests_taken():
    one = batcher(minimum=1)
    got, threads = asking(one, 1)
    assert one.take(20)
    one.close()
    finished(threads)
    assert set(got.values()) == {Closed}


def test_sizes_of_batches():
    assert buckets(1) == [1]
    assert buckets(8) == [1, 2, 4, 8]
    assert buckets(12) == [1, 2, 4, 8, 12]


# The limiter


def test_a_band_that_could_deadlock_is_refused():
    with pytest.raises(ValueError, match=r"band must be at least 24 .* got 10"):
        Limiter(0.5, 100, inserting=32, sampling=32, band=10)
    assert Limiter(0.5, 100, inserting=32, sampling=32).band == 24


def test_it_says_who_waits_and_what_was_counted():
    one = Limiter(1.0, 10, inserting=1, sampling=4, timeout=0.05)
    told = r"sampling waited 0.05 s .* 0 windows inserted \(minimum 10\), 0 sampled, 1 samples"
    with pytest.raises(Stalled, match=told):
        one.sample(4)
    one.inserts(13)
    thread = threading.Thread(target=one.may_insert, args=(1,), daemon=True)
    thread.start()
    time.sleep(0.2)  # longer than sampling would wait: a learner may be busy
    assert thread.is_alive() and one.waiting == "inserting"
    assert one.sample(4)
    thread.join(20)
    assert not thread.is_alive() and one.waiting == ""


def test_the_minimum_is_filled_whatever_the_band():
    one = Limiter(8.0, 1000, inserting=32, sampling=32)
    for _ in range(32):
        assert one.may_insert(32)
        one.inserts(32)
    assert one.inserted == 1024


def test_inserts_keep_a_wait_for_the_minimum_alive():
    one = Limiter(1.0, 10, inserting=1, sampling=4, timeout=0.5)
    thread = threading.Thread(target=one.sample, args=(4,), daemon=True)
    thread.start()
    for _ in range(14):
        time.sleep(0.1)
        one.inserts(1)
    thread.join(20)
    assert not thread.is_alive() and one.sampled == 4


def test_a_replay_that_is_saved_is_no_stall():
    one = Limiter(1.0, 10, inserting=1, sampling=4, timeout=0.1)
    with one.still():
        thread = threading.Thread(target=one.sample, args=(4,), daemon=True)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        one.inserts(14)
        thread.join(20)
    assert not thread.is_alive() and one.sampled == 4


def test_sampling_waits_for_a_window_that_can_be_drawn():
    one, there = Limiter(1.0, 10, inserting=1, sampling=4, timeout=20), []
    one.inserts(20)
    thread = threading.Thread(target=one.sample, args=(4, lambda: bool(there)), daemon=True)
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive() and one.waiting == "sampling" and one.sampled == 0
    there.append("a window")
    one.inserts(1)
    thread.join(20)
    assert not thread.is_alive() and one.sampled == 4
    one.timeout = 0.05
    with pytest.raises(Stalled, match=r"21 windows inserted \(minimum 10\), none of which can be drawn, 4 sampled"):
        one.sample(4, lambda: False)


def test_a_ratio_of_nothing_is_refused():
    with pytest.raises(ValueError, match="samples per insert must be above 0"):
        Limiter(0.0, 10, inserting=1, sampling=1)


def test_all_go_when_it_stops():
    one = Limiter(1.0, 10, inserting=1, sampling=4)
    got = []
    thread = threading.Thread(target=lambda: got.append(one.sample(4)), daemon=True)
    thread.start()
    one.stop()
    thread.join(20)
    assert got == [False] and one.sampled == 0


@settings(max_examples=25, deadline=None)
@given(
    ratio=st.floats(0.05, 8.0),
    minimum=st.integers(0, 50),
    inserting=st.integers(1, 8),
    sampling=st.integers(1, 32),
    wider=st.floats(1.0, 3.0),
)
def test_neither_side_waits_for_ever_and_the_ratio_is_kept(ratio, minimum, inserting, sampling, wider):
    least = float(Limiter(ratio, minimum, inserting, sampling).band)
    one = Limiter(ratio, minimum, inserting, sampling, band=least * wider, timeout=20)
    errors, done = [], threading.Event()

    def guarded(step):
        try:
            while not done.is_set() and step():
                pass
        except BaseException as error:
            errors.append(error)

    def insert():
        if not one.may_insert(inserting):
            return False
        one.inserts(inserting)
        return True

    threads = [
        threading.Thread(target=guarded, args=(step,), daemon=True) for step in (insert, lambda: one.sample(sampling))
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while not errors and one.sampled < 20 * sampling:
        assert time.monotonic() < end
        time.sleep(0.001)
    done.set()
    one.stop()
    for thread in threads:
        thread.join(20)
    assert not errors, errors
    ahead = ratio * max(one.inserted - minimum, 0) - one.sampled
    assert abs(ahead) <= one.band + ratio * inserting + sampling
