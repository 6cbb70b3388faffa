"""Concurrent questions share calls of the index, and no question spoils another's answer."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.running_apart import run_apart

from pmpguard.search.query import Condition, Filters, Query
from pmpguard.search.query_checks import QueryError
from pmpguard.serving.batching import BackendQuery, Batcher
from pmpguard.serving.errors import RequestError
from pmpguard.serving.protocols import BoundedExecutor


def ask(text: str, k: int = 3, **filters: tuple[str, ...]) -> BackendQuery:
    return BackendQuery(Query(text), k, 100, Filters(columns=filters))


async def with_batcher(searcher, work, *, waiting=64, seconds=5.0, **options):
    executor = BoundedExecutor("test", threads=1, waiting=64, seconds=seconds)
    batcher = Batcher(searcher, executor, waiting=waiting, **options)
    task = asyncio.create_task(batcher.run())
    try:
        return await work(batcher)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        executor.close()


def test_questions_at_the_same_time_are_asked_together():
    searcher, sizes = FakeSearcher(), []
    texts = [f"a plane {number}" for number in range(20)]

    async def work(batcher):
        return await asyncio.gather(*(batcher.search(ask(text)) for text in texts))

    answers = run_apart(with_batcher(searcher, work, on_batch=sizes.append))
    alone = [searcher.search_many([Query(text)], 3)[0] for text in texts]
    assert [found.hits for found in answers] == alone
    assert sizes == [20]
    assert {(found.version, found.count) for found in answers} == {("000001", 24)}


def test_only_questions_that_agree_share_a_call_and_none_is_larger_than_allowed():
    searcher = FakeSearcher()
    asks = [ask("a", 3), ask("b", 4), ask("c", 3, colour=("odd",)), ask("d", 3), *[ask("e", 5)] * 10]
    asks[2] = BackendQuery(Query("c"), 3, 100, Filters(columns={"class": ("odd",)}))
    asks[3] = BackendQuery(Query("d"), 3, 100, Filters(conditions=(Condition("west", ">=", ("8",)),)))

    async def work(batcher):
        return await asyncio.gather(*(batcher.search(one) for one in asks))

    answers = run_apart(with_batcher(searcher, work, largest=8))
    assert sum(searcher.batches) == len(asks) and max(searcher.batches) <= 8
    assert [len(found.hits) for found in answers] == [one.k for one in asks]
    assert all(hit.metadata["class"] == "odd" for hit in answers[2].hits)
    assert all(hit.metadata["west"] >= 8 for hit in answers[3].hits)


def test_one_wrong_question_fails_alone():
    async def work(batcher):
        texts = ["a plane", "!!!", "a pond"]
        return await asyncio.gather(*(batcher.search(ask(text)) for text in texts), return_exceptions=True)

    first, wrong, last = run_apart(with_batcher(FakeSearcher(), work))
    assert isinstance(wrong, QueryError)
    assert len(first.hits) == len(last.hits) == 3


def test_whatever_the_index_raises_reaches_every_question_and_the_next_one_is_answered():
    searcher = FakeSearcher()

    async def work(batcher):
        searcher.broken = OSError("gone")
        failed = await asyncio.gather(
            batcher.search(ask("a")), batcher.search(ask("b")), return_exceptions=True
        )
        searcher.broken = None
        return failed, await batcher.search(ask("c"))

    failed, found = run_apart(with_batcher(searcher, work))
    assert [str(error) for error in failed] == ["gone", "gone"]
    assert len(found.hits) == 3


def test_a_full_queue_refuses_at_once():
    searcher = FakeSearcher()

    async def work(batcher):
        searcher.gate.clear()
        tasks = [asyncio.create_task(batcher.search(ask("a")))]
        await asyncio.sleep(0.05)  # it is being answered
        tasks += [asyncio.create_task(batcher.search(ask("b"))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as flagged:  # the gate is closed: who waits meets the time-out
            await asyncio.wait_for(batcher.search(ask("c")), timeout=10)
        searcher.gate.set()
        await asyncio.gather(*tasks)
        return flagged.value

    refusal = run_apart(with_batcher(searcher, work, waiting=2))
    assert refusal.status == 503 and refusal.headers == {"Retry-After": "1"}


def test_a_slow_index_is_answered_as_busy_and_whoever_gave_up_is_not_worked_for():
    searcher = FakeSearcher()

    async def work(batcher):
        searcher.gate.clear()
        first = asyncio.create_task(batcher.search(ask("a")))
        await asyncio.sleep(0.05)
        given_up = asyncio.create_task(batcher.search(ask("given up")))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(RequestError, match="took too long"):
            await first
        searcher.gate.set()
        await batcher.search(ask("b"))

    run_apart(with_batcher(searcher, work, seconds=0.3))
    asked = [query.text for queries, *_ in searcher.asked for query in queries]
    assert asked == ["a", "b"]


def test_whoever_waits_when_the_server_stops_is_told():
    searcher = FakeSearcher()

    async def work(batcher):
        searcher.gate.clear()
        tasks = [
            asyncio.create_task(batcher.search(ask(text, k))) for text, k in (("a", 1), ("b", 2), ("c", 3))
        ]
        await asyncio.sleep(0.05)
        return tasks

    async def main():
        tasks = await with_batcher(searcher, work)
        searcher.gate.set()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 2)

    assert [error.status for error in run_apart(main())] == [503, 503, 503]


def test_an_answer_and_its_version_belong_together():
    """The index is swapped while it is asked: the answer is asked for again."""
    searcher = FakeSearcher()
    search, calls = searcher.search_many, []

    def swapped_meanwhile(*arguments):
        calls.append(searcher.version)
        hits = search(*arguments)
        if len(calls) == 1:
            searcher.version, searcher.fingerprint = "000002", "b2"
        return hits

    searcher.search_many = swapped_meanwhile

    async def work(batcher):
        return await batcher.search(ask("a"))

    found = run_apart(with_batcher(searcher, work))
    assert calls == ["000001", "000002"] and found.version == "000002"


def test_a_lane_refuses_what_would_wait_too_long_and_counts_what_hangs():
    gate = threading.Event()

    async def main():
        executor = BoundedExecutor("test", threads=1, waiting=2, seconds=0.2)
        hanging = [asyncio.create_task(executor.run(gate.wait, 5)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(RequestError, match="too many"):
            await executor.run(time.time)
        for task in hanging:
            with pytest.raises(RequestError, match="too long"):
                await task
        pending = executor.pending
        gate.set()
        await asyncio.sleep(0.1)
        assert await executor.run(lambda: 7) == 7
        executor.close()
        return pending, executor.pending

    assert run_apart(main()) == (1, 0)


@pytest.mark.parametrize("turns", range(6))
def test_work_that_ends_at_the_moment_of_cancelling_does_not_hide_it(turns):
    """A loop that asks again and again must end when the server does, whichever comes first."""
    called = threading.Event()

    async def work():
        executor = BoundedExecutor("test", threads=1, waiting=2, seconds=5.0)

        async def again_and_again():
            while True:
                await executor.run(called.set)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(again_and_again())
        await asyncio.sleep(0)
        assert called.wait(5)
        time.sleep(0.01)  # it is done, and this loop has not heard of it yet
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=1)
        executor.close()
        return ended

    assert run_apart(work())
