"""Registration, election and session events of a broker, on a tree in memory."""

import asyncio

import pytest

from headrace.broker.membership import Membership
from headrace.broker.sessions import InProcessSessions
from headrace.coordination import paths
from headrace.coordination.current_session import CurrentSession
from headrace.coordination.registry import BrokerIdInUse, Registry
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.errors import ErrorCode
from tests.fakes.standin import StillWorld, in_loop
from tests.fakes.trees import memory_tree
from tests.fakes.waiting import until_true

ENDPOINTS = {"PLAINTEXT": Endpoint("localhost", 9092)}


class Term:
    """Records what happens to a controller."""

    def __init__(self, registry, elected, on_fenced):
        self.registry = registry
        self.controller_epoch = elected.controller_epoch
        self.fenced = on_fenced
        self.is_started = self.is_stopped = False

    async def start(self):
        self.is_started = True

    async def stop(self):
        self.is_stopped = True


class Member:
    def __init__(self, tree, broker_id, timeout_ms=1000, is_lossy=False):
        self.tree = tree
        self.broker_id = broker_id
        self.timeout_ms = timeout_ms
        self.is_lossy = is_lossy
        self.known_losses = []
        self.terms = []
        self.failures = []
        self.sessions = []

    async def open_session(self):
        session = self.tree.open_session()
        self.sessions.append(session)
        return session

    async def join(self):
        sessions = InProcessSessions(self.open_session, self.timeout_ms)
        current = CurrentSession(await sessions.open())
        await Registry(current, self.broker_id).create_persistent_nodes()
        self.membership = Membership(
            current,
            sessions,
            broker_id=self.broker_id,
            world=StillWorld(),
            fail=self.failures.append,
            begin_term=self.begin,
            losses_reported=lambda: self.known_losses.append(self.broker_id),
        )
        entry = BrokerEntry(
            self.broker_id, ENDPOINTS, None, -1, may_have_lost_records=self.is_lossy
        )
        await self.membership.join(entry)
        return self

    def begin(self, *arguments):
        self.terms.append(Term(*arguments))
        return self.terms[-1]

    @property
    def leads(self):
        return self.membership.is_controller and self.terms[-1].is_started

    def expire(self):
        self.tree.expire(self.sessions[-1].session_id)


async def members(*broker_ids):
    tree = memory_tree()
    joined = [await Member(tree, broker_id).join() for broker_id in broker_ids]
    await until_true(lambda: joined[0].leads)
    return joined


async def leave(*joined):
    for member in joined:
        await member.membership.resign()
        assert member.failures == []


@in_loop
async def test_a_broker_registers_and_one_becomes_controller():
    first, second = joined = await members(1, 2)
    live = await Registry(first.tree.open_session(), 9).watched.live_brokers()
    assert {i: each.broker_epoch for i, each in live.items()} == {
        1: first.membership.broker_epoch,
        2: second.membership.broker_epoch,
    }
    assert first.leads and not second.leads
    await leave(*joined)
    assert first.terms[0].is_stopped


@in_loop
async def test_the_next_broker_becomes_controller_when_the_session_of_the_first_ends():
    first, second = joined = await members(1, 2)
    first.sessions[-1].disconnect()
    first.expire()
    await until_true(lambda: second.leads)
    assert second.terms[0].controller_epoch > first.terms[0].controller_epoch
    assert first.leads  # it does not know yet
    first.sessions[-1].reconnect()
    await until_true(lambda: first.terms[0].is_stopped)
    await leave(*joined)


@in_loop
async def test_after_a_lost_session_a_broker_registers_again_with_a_new_epoch():
    (member,) = await members(1)
    epoch = member.membership.broker_epoch
    seen = []

    async def catch_up():
        seen.append(member.membership.broker_epoch)

    member.membership.on_new_session(catch_up)
    member.expire()
    await until_true(lambda: len(member.terms) == 2 and member.leads)
    assert member.terms[0].is_stopped
    assert member.membership.broker_epoch > epoch
    assert seen == [member.membership.broker_epoch]
    await leave(member)


@in_loop
async def test_a_lost_connection_alone_changes_nothing():
    (member,) = await members(1)
    epoch = member.membership.broker_epoch
    member.sessions[-1].disconnect()
    await asyncio.sleep(0)
    member.sessions[-1].reconnect()
    await asyncio.sleep(0)
    assert member.leads and member.membership.broker_epoch == epoch
    await leave(member)


@in_loop
async def test_a_fenced_controller_ends_its_term_and_is_a_candidate_again():
    (member,) = await members(1)
    member.terms[0].fenced()
    await until_true(lambda: len(member.terms) == 2 and member.leads)
    assert member.terms[0].is_stopped
    await leave(member)


@in_loop
async def test_a_controller_whose_node_is_deleted_ends_its_term():
    first, second = joined = await members(1, 2)
    other = first.tree.open_session()
    await other.delete(paths.CONTROLLER, (await other.get(paths.CONTROLLER)).zk_version)
    await until_true(lambda: first.terms[0].is_stopped and (second.leads or len(first.terms) == 2))
    await leave(*joined)


@in_loop
async def test_a_broker_that_resigns_lets_another_be_controller_at_once():
    first, second = joined = await members(1, 2)
    await first.membership.resign()
    await first.membership.release_controllership()
    await until_true(lambda: second.leads)
    await leave(*joined)


@in_loop
async def test_a_taken_broker_id_is_refused_after_the_session_timeout():
    (member,) = await members(1)
    rival = Member(member.tree, 1, timeout_ms=50)
    with pytest.raises(BrokerIdInUse, match=r"broker.id 1 is in use .* localhost:9092"):
        await rival.join()
    node = await member.sessions[-1].get(paths.broker(1))
    assert node.ephemeral_owner == member.sessions[-1].session_id
    await leave(member)


@in_loop
async def test_a_restarted_broker_waits_for_its_old_session_to_end():
    (member,) = await members(1)
    await leave(member)
    restarted = Member(member.tree, 1)
    joining = asyncio.create_task(restarted.join())
    await asyncio.sleep(0)
    member.expire()
    await joining
    await until_true(lambda: restarted.leads)
    await leave(restarted)


@in_loop
async def test_requests_for_an_earlier_registration_are_refused():
    (member,) = await members(1)
    epoch = member.membership.broker_epoch
    check = member.membership.check_controller
    assert await check(1, epoch, is_kraft=False) is ErrorCode.NONE
    assert await check(1, epoch - 1, is_kraft=False) is ErrorCode.STALE_BROKER_EPOCH
    assert await check(0, epoch, is_kraft=False) is ErrorCode.STALE_CONTROLLER_EPOCH
    await leave(member)


async def registered(member):
    live = await Registry(member.tree.open_session(), 9).watched.live_brokers()
    return live[member.broker_id]


async def until_version(session, path, zk_version):
    changed = asyncio.Event()
    node = await session.get(path, lambda path: changed.set())
    if node.zk_version < zk_version:
        await changed.wait()


@in_loop
async def test_records_that_may_be_lost_are_in_the_registration_until_a_controller_knows():
    member = await Member(memory_tree(), 1, is_lossy=True).join()
    await until_true(lambda: member.leads)
    entry = await registered(member)
    assert entry.may_have_lost_records and member.known_losses == []
    check = member.membership.check_controller
    # A request for the last process says nothing about what the controller knows of this one.
    await check(1, entry.broker_epoch - 1, is_kraft=False)
    assert (await registered(member)).may_have_lost_records
    await check(1, entry.broker_epoch, is_kraft=False)
    await until_true(lambda: member.known_losses == [1])
    session = member.tree.open_session()
    await until_version(session, paths.broker(1), 1)
    assert await registered(member) == entry._replace(may_have_lost_records=False)
    await leave(member)


@in_loop
async def test_records_that_may_be_lost_are_in_the_next_registration_unless_a_controller_knows():
    member = await Member(memory_tree(), 1, is_lossy=True).join()
    await until_true(lambda: member.leads)
    epoch = member.membership.broker_epoch
    member.expire()
    await until_true(lambda: member.membership.broker_epoch != epoch)
    assert (await registered(member)).may_have_lost_records
    await leave(member)


@in_loop
async def test_a_broker_that_waits_for_its_registration_obeys_no_request_for_its_last_process():
    (member,) = await members(1)
    last_epoch = member.membership.broker_epoch
    await leave(member)
    restarted = Member(member.tree, 1)
    joining = asyncio.create_task(restarted.join())
    await until_true(lambda: hasattr(restarted, "membership"))
    check = restarted.membership.check_controller
    checking = asyncio.create_task(check(1, last_epoch, is_kraft=False))
    await asyncio.sleep(0.05)
    assert not checking.done()
    member.expire()
    await joining
    assert await checking is ErrorCode.STALE_BROKER_EPOCH
    await leave(restarted)
