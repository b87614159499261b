"""The tree of a simulation: sessions expire with their brokers, and answers get lost."""

import asyncio
import random

import pytest

from headrace.coordination.tree import OutcomeUnknown, SessionEvent, SessionLost
from tests.sim.loop import SimulatedProcess, run_simulated
from tests.sim.tree import SimulatedEnsemble, TreeFaultRates

TIMEOUT_S = 6.0


def on_an_ensemble(story, **rates):
    async def run():
        loop = asyncio.get_running_loop()
        await story(SimulatedEnsemble(loop, 1, TreeFaultRates(**rates), TIMEOUT_S))

    run_simulated(run(), random.Random(1))


async def lives(session, path):
    return await session.get(path) is not None


def test_the_session_of_a_killed_process_expires_after_its_timeout():
    async def story(ensemble):
        session, other = ensemble.open_session("a"), ensemble.open_session("b")
        await session.create("/mine", ephemeral=True)
        ensemble.kill("a")
        with pytest.raises(SessionLost):
            await session.get("/mine")
        await asyncio.sleep(TIMEOUT_S - 1)
        assert await lives(other, "/mine")
        ensemble.restart("a")
        again = ensemble.open_session("a")
        await asyncio.sleep(2)
        assert not await lives(again, "/mine")

    on_an_ensemble(story)


def test_a_pause_longer_than_the_timeout_loses_the_session_and_the_owner_learns_it_later():
    async def story(ensemble):
        process = SimulatedProcess(ensemble.loop)
        events = []

        async def own():
            session = ensemble.open_session("a")
            session.on_session_event = lambda event: events.append((event, ensemble.loop.time()))
            await session.create("/mine", ephemeral=True)

        process.spawn(own())
        other = ensemble.open_session("b")
        await asyncio.sleep(1)
        for seconds, is_kept in [(TIMEOUT_S - 1, True), (TIMEOUT_S + 1, False)]:
            ensemble.pause("a")
            process.pause()
            await asyncio.sleep(seconds)
            assert await lives(other, "/mine") == is_kept
            assert not events
            resumed_at = ensemble.loop.time()
            process.resume()
            ensemble.resume("a")
        await asyncio.sleep(1)
        assert [event for event, _ in events] == [SessionEvent.LOST]
        assert events[0][1] >= resumed_at

    on_an_ensemble(story)


def test_a_cut_leaves_the_outcome_of_a_write_open_and_the_session_goes_on():
    async def story(ensemble):
        session, other = ensemble.open_session("a"), ensemble.open_session("b")
        events = []
        session.on_session_event = events.append
        seen = set()
        for number in range(40):
            write = asyncio.ensure_future(session.create(f"/node-{number}"))
            await asyncio.sleep(number * 0.000_1)
            ensemble.cut("a")
            try:
                await asyncio.wait_for(write, 0.01)
            except OutcomeUnknown:
                seen.add(await lives(other, f"/node-{number}"))
            except TimeoutError:
                pass
            ensemble.mend("a")
            await session.sync()
        assert seen == {True, False}
        assert set(events) == {SessionEvent.SUSPENDED, SessionEvent.RECONNECTED}

    on_an_ensemble(story)


def test_calls_of_one_session_stay_in_order():
    async def story(ensemble):
        session = ensemble.open_session("a")
        await session.create("/n")
        writes = [session.set("/n", b"%d" % version, version) for version in range(20)]
        done = await asyncio.gather(*writes)
        assert [d.zk_version for d in done] == list(range(1, 21))

    on_an_ensemble(story)


def test_a_watch_arrives_before_the_answer_that_shows_the_change():
    async def story(ensemble):
        session, other = ensemble.open_session("a"), ensemble.open_session("b")
        await session.create("/n", b"old")
        for number in range(50):
            fired = []
            before = await session.get("/n", fired.append)
            await other.set("/n", b"%d" % number, before.zk_version)
            while (await session.get("/n")).zk_version == before.zk_version:
                pass
            assert fired == ["/n"]

    on_an_ensemble(story, lag=0.5)


def test_lost_answers_are_drawn_while_faults_are_on():
    async def story(ensemble):
        session = ensemble.open_session("a")
        unknown = 0
        for number in range(100):
            try:
                await session.create(f"/node-{number}")
            except OutcomeUnknown:
                unknown += 1
        assert 20 < unknown < 80
        ensemble.rates.are_on = False
        await session.sync()
        for number in range(100, 200):
            await session.create(f"/node-{number}")

    on_an_ensemble(story, lost=0.5)


def test_a_restarted_broker_may_end_the_session_of_its_last_process():
    async def story():
        loop = asyncio.get_running_loop()
        rates = TreeFaultRates()
        ensemble = SimulatedEnsemble(loop, 1, rates, TIMEOUT_S, releases_sessions=True)
        last = ensemble.open_session("a")
        for path in ("/brokers", "/brokers/ids"):
            await last.create(path)
        first = await last.create("/brokers/ids/0", ephemeral=True)
        ensemble.kill("a")
        ensemble.restart("a")
        again = await ensemble.open_session("a").create("/brokers/ids/0", ephemeral=True)
        assert again.zxid > first.zxid

    run_simulated(story(), random.Random(1))
