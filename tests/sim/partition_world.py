"""Three replicas of one partition, a controller and producers, without sockets, files or clock.

Real are the machines (``core.partition`` and its roles, ``core.leader_epochs``); the rest is as
small as a fault model allows: messages are late or lost, brokers are killed and return, the
controller notices late and tells late, leaderships move, and the last in-sync replica may lose
power. The seed draws the rates of all faults too, not only the events.

Checked all the while:
- every replica that may lead next (the ISR, as the controller knows it) holds all committed
  records, and replicas agree below their high watermarks;
- a record acknowledged with acks=all is in the log of every later leader;
- "latest", as leaders of the current epoch answer it, never goes back.
"""

from headrace.core.isr import IsrRefusal, refusal_of
from headrace.core.leader_epochs import LeaderEpochs
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition_effects import (
    FollowLeader,
    HighWatermarkAdvanced,
    LeaderEpochBumped,
    LeadershipGained,
    ProposeIsr,
    RestartLog,
    Truncate,
)
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from tests.fakes.partition_states import a_state
from tests.sim.scheduler import Scheduler

REPLICAS = (1, 2, 3)
MIN_ISR = 2
FETCH_TIMEOUT_MS = 60
_LACKS_COMMITTED = "a replica that may lead next lacks committed records"


class Rates:
    """How bad the world is, drawn once for a run."""

    def __init__(self, dice):
        self.loss = dice.choice([0, 0.1, 0.3, 0.6])
        self.network_ms = dice.uniform(1, 15)
        self.controller_ms = dice.uniform(2, 150)
        self.session_ms = dice.uniform(20, 300)
        self.restart_ms = dice.uniform(20, 600)
        self.kill_ms = dice.uniform(60, 1000)
        self.move_ms = dice.choice([20, 100, 500, 2000])
        self.produce_ms = dice.uniform(1, 12)
        self.fetch_count_max = dice.randint(1, 6)
        self.lag_ms = int(dice.uniform(60, 400))
        self.power_loss = dice.choice([0, 0.5])


class Broker:
    """One process after the other with the same log."""

    def __init__(self, world, broker_id):
        self.world = world
        self.broker_id = broker_id
        self.log = []  # (leader epoch, value)
        self.epochs = LeaderEpochs()
        self.checked_end = 0  # compared with the committed records
        self.checkpointed = 0
        self.durable_end = 0
        self.is_alive = False
        self.broker_epoch = -1
        self.start()

    def start(self):
        self.is_alive = True
        self.broker_epoch = self.world.next_broker_epoch()
        settings = ReplicationSettings(MIN_ISR, lag_time_ms_max=self.world.rates.lag_ms)
        high_watermark = self.world.restore_high_watermark(self.checkpointed, len(self.log))
        self.partition = self.world.partition_class(self.broker_id, settings, high_watermark)
        self.waiting = []  # acks=all: (leadership, offset end, value)
        self.fetching = None  # what the current fetch is for

    def kill(self, *, power_loss):
        self.is_alive = False
        self.broker_epoch = -1
        self.checkpointed = self.world.dice.choice(
            [self.checkpointed, self.partition.high_watermark]
        )
        if power_loss:
            self.truncate(min(len(self.log), self.durable_end))

    def truncate(self, to):
        del self.log[to:]
        self.epochs.truncate_end(to)
        self.checked_end = min(self.checked_end, to)

    # --- effects ---------------------------------------------------------------

    def run(self, effects):
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced(to):
                    self.world.committed_up_to(self, to)
                case ProposeIsr():
                    self.world.propose(self, effect)
                case LeadershipGained(leader_epoch, offset) | LeaderEpochBumped(
                    leader_epoch, offset
                ):
                    self.epochs.assign(leader_epoch, offset)
                case FollowLeader():
                    self.fetch()
                case Truncate(to):
                    self.truncate(to)
                case RestartLog():
                    raise AssertionError("no log here has a start above 0")
        self.acknowledge()

    def acknowledge(self):
        leadership = self.partition.leadership
        still_waiting = []
        for term, offset_end, value in self.waiting:
            if term is not leadership:
                continue  # told NOT_LEADER_OR_FOLLOWER
            code = term.acknowledgement(offset_end)
            if code is None:
                still_waiting.append((term, offset_end, value))
            elif code is ErrorCode.NONE:
                self.world.acknowledged[offset_end - 1] = value
        self.waiting = still_waiting

    # --- leading ---------------------------------------------------------------

    def produce(self, value, acks_all):
        leadership = self.partition.leadership
        if acks_all and not leadership.enough_replicas:
            return  # NOT_ENOUGH_REPLICAS
        self.log.append((leadership.leader_epoch, value))
        end = len(self.log)
        if acks_all:
            self.waiting.append((leadership, end, value))
        self.run(leadership.appended(end, end))

    def tick(self):
        if self.is_alive and (leadership := self.partition.leadership) is not None:
            self.run(leadership.tick(self.world.now))

    def serve_fetch(self, follower, position, broker_epoch):
        """The answer: (records, high watermark, diverging epoch); None for an error."""
        partition = self.partition
        try:
            diverging = partition.check_follower_fetch(
                follower,
                position.current_leader_epoch,
                position.fetch_offset,
                position.last_fetched_epoch,
                self.epochs,
                0,
                len(self.log),
            )
        except Rejected:
            return None
        if diverging is not None:
            return [], 0, diverging
        leadership = partition.leadership
        self.run(
            leadership.follower_fetched(
                follower, position.fetch_offset, 0, broker_epoch, self.world.now
            )
        )
        start = position.fetch_offset
        records = self.log[start : start + self.world.rates.fetch_count_max]
        return records, leadership.high_watermark, None

    # --- following -------------------------------------------------------------

    def fetch(self):
        following = self.partition.following
        if not self.is_alive or following is None or following.leader == NO_LEADER:
            return
        self.fetching = fetch = object()
        end = len(self.log)
        position = following.fetch_position(end, end, self.epochs)
        leader = self.world.brokers[following.leader]
        self.world.send(self._ask, leader, position, self.broker_epoch, following, fetch)
        self.world.after(FETCH_TIMEOUT_MS, self._fetch_timed_out, following, fetch)

    def _fetch_timed_out(self, following, fetch):
        if self.fetching is fetch and self.partition.following is following:
            self.fetch()

    def _ask(self, leader, position, broker_epoch, following, fetch):
        if leader.is_alive:
            answer = leader.serve_fetch(self.broker_id, position, broker_epoch)
            self.world.send(self._fetched, answer, following, fetch)

    def _fetched(self, answer, following, fetch):
        # A fetch that timed out is over: its connection is closed.
        if not self.is_alive or self.partition.following is not following:
            return
        if self.fetching is not fetch:
            return
        if answer is None:
            self.world.after(20, self._fetch_timed_out, following, fetch)
            return
        records, high_watermark, diverging = answer
        if diverging is not None:
            self.run(following.diverged(diverging, self.epochs, 0, len(self.log)))
        else:
            for record in records:
                self.epochs.assign(record[0], len(self.log))
                self.log.append(record)
            self.run(following.fetched(high_watermark, 0, 0, len(self.log)))
        self.world.after(self.world.dice.uniform(0, 5), self._fetch_timed_out, following, fetch)


class World:
    def __init__(self, seed, partition_class, restore_high_watermark=min):
        """``restore_high_watermark`` makes it of the checkpointed one and the log end."""
        self.partition_class = partition_class
        self.restore_high_watermark = restore_high_watermark
        self.scheduler = Scheduler(seed)
        self.dice = self.scheduler.dice
        self.after = self.scheduler.after
        self.rates = Rates(self.dice)
        self.has_faults = self.has_producers = True
        self.committed = []  # values by offset, as the first leader committed them
        self.acknowledged = {}
        self.latest = 0
        self.value_count = 0
        self._broker_epoch = 0
        self.state = a_state(leader=1, leader_epoch=0, isr=REPLICAS, replicas=REPLICAS)
        self.brokers = {broker_id: Broker(self, broker_id) for broker_id in REPLICAS}
        self._registered = {b.broker_id: b.broker_epoch for b in self.brokers.values()}
        for broker_id in REPLICAS:
            self._tell(broker_id)
        self.after(self.rates.lag_ms / 2, self._tick)
        self.after(self.rates.produce_ms, self._produce)
        self.after(self.rates.kill_ms, self._kill)
        self.after(self.rates.move_ms, self._move_leadership)

    @property
    def now(self):
        return self.scheduler.now

    def next_broker_epoch(self):
        self._broker_epoch += 1
        return self._broker_epoch

    def send(self, deliver, *message):
        if not self.has_faults or self.dice.random() >= self.rates.loss:
            self.after(self.dice.uniform(0.5, self.rates.network_ms), deliver, *message)

    def heal(self):
        """No more faults: all brokers return, and messages arrive."""
        self.has_faults = False
        for broker in self.brokers.values():
            if not broker.is_alive:
                self._restart(broker)

    # --- checks ----------------------------------------------------------------

    def committed_up_to(self, broker, high_watermark):
        for offset in range(broker.checked_end, high_watermark):
            value = broker.log[offset][1]
            if offset == len(self.committed):
                self.committed.append(value)
                for electable in self.state.isr:
                    held = self.brokers[electable].log[offset : offset + 1]
                    assert held == broker.log[offset : offset + 1], _LACKS_COMMITTED
            assert value == self.committed[offset], f"committed offset {offset} was rewritten"
        broker.checked_end = max(broker.checked_end, high_watermark)

    def _check_electable(self, broker):
        values = [value for _, value in broker.log]
        known = len(self.committed)
        assert values[:known] == self.committed, _LACKS_COMMITTED

    def _check_elected(self, broker):
        self._check_electable(broker)
        for offset, value in self.acknowledged.items():
            held = [held for _, held in broker.log[offset : offset + 1]]
            assert held == [value], "a leader lacks acknowledged records"

    def _ask_for_latest(self):
        state = self.state
        if state.leader == NO_LEADER:
            return
        leadership = self.brokers[state.leader].partition.leadership
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            return
        if self.brokers[state.leader].is_alive and leadership.is_high_watermark_current:
            assert leadership.high_watermark >= self.latest, '"latest" went back'
            self.latest = leadership.high_watermark

    def is_whole(self):
        """Whether all replicas are in sync and hold the same records."""
        logs = [broker.log for broker in self.brokers.values()]
        return len(self.state.isr) == len(REPLICAS) and logs[0] == logs[1] == logs[2]

    # --- what happens ------------------------------------------------------------

    def _produce(self):
        """To any broker that believes to lead, as a client with old metadata does."""
        if not self.has_producers:
            return
        self.after(self.dice.uniform(0, 2 * self.rates.produce_ms), self._produce)
        leaders = [b for b in self.brokers.values() if b.is_alive and b.partition.leadership]
        if leaders:
            self.value_count += 1
            acks_all = self.dice.random() < 0.7
            self.dice.choice(leaders).produce(self.value_count, acks_all)
        self._ask_for_latest()

    def _tick(self):
        self.after(self.rates.lag_ms / 2, self._tick)
        for broker in self.brokers.values():
            broker.tick()

    def _kill(self):
        if not self.has_faults:
            return
        self.after(self.dice.uniform(0, 2 * self.rates.kill_ms), self._kill)
        broker = self.brokers[self.dice.choice(REPLICAS)]
        if not broker.is_alive:
            return
        # The last in-sync replica may lose what came since it is alone, and no other one.
        alone = self.state.isr == (broker.broker_id,)
        broker.kill(power_loss=alone and self.dice.random() < self.rates.power_loss)
        epoch = self._registered[broker.broker_id]
        self.after(self.rates.session_ms, self._session_over, broker.broker_id, epoch)
        self.after(self.dice.uniform(1, 2 * self.rates.restart_ms), self._restart, broker)

    def _restart(self, broker):
        if broker.is_alive:
            return
        # A quick restart is a new broker: the controller first handles the death of the old one.
        self._session_over(broker.broker_id, self._registered.get(broker.broker_id))
        broker.start()
        self._registered[broker.broker_id] = broker.broker_epoch
        if self.state.leader == NO_LEADER and broker.broker_id in self.state.isr:
            self._decide(broker.broker_id, self.state.isr)
        else:
            self._tell(broker.broker_id)

    # --- the controller ----------------------------------------------------------

    def _session_over(self, broker_id, broker_epoch):
        if broker_epoch is None or self._registered.get(broker_id) != broker_epoch:
            return
        del self._registered[broker_id]
        if broker_id not in self.state.isr and broker_id != self.state.leader:
            return
        left = tuple(b for b in self.state.isr if b != broker_id)
        isr = left or self.state.isr  # the last member stays: only it may lead next
        leader = self.state.leader
        if leader in (broker_id, NO_LEADER):
            electable = [b for b in REPLICAS if b in isr and b in self._registered]
            leader = electable[0] if electable else NO_LEADER
        self._decide(leader, isr)

    def _move_leadership(self):
        if not self.has_faults:
            return
        self.after(self.dice.uniform(0, 2 * self.rates.move_ms), self._move_leadership)
        electable = [b for b in self.state.isr if b in self._registered]
        if electable and self.state.leader != NO_LEADER:
            self._decide(self.dice.choice(electable), self.state.isr)

    def _decide(self, leader, isr):
        """Write a new state with a higher leader epoch, and tell the brokers of it."""
        if leader not in (NO_LEADER, self.state.leader):
            self._check_elected(self.brokers[leader])
        self._write(leader=leader, isr=isr, leader_epoch=self.state.leader_epoch + 1)
        for broker_id in REPLICAS:
            self._tell(broker_id)

    def _write(self, **changes):
        was_enough = len(self.state.isr) >= MIN_ISR
        self.state = self.state._replace(partition_epoch=self.state.partition_epoch + 1, **changes)
        for broker_id in self.state.isr:
            self._check_electable(self.brokers[broker_id])
        if was_enough and len(self.state.isr) < MIN_ISR:
            for broker in self.brokers.values():
                broker.durable_end = len(broker.log)

    def _tell(self, broker_id):
        """LeaderAndIsr; what is lost is sent again, with the state of then."""
        self.after(self.dice.uniform(0.5, self.rates.controller_ms), self._told, broker_id)

    def _told(self, broker_id):
        broker = self.brokers[broker_id]
        if not broker.is_alive or broker_id not in self._registered:
            return
        if self.has_faults and self.dice.random() < self.rates.loss:
            self._tell(broker_id)
            return
        broker.run(broker.partition.apply(self.state, 0, len(broker.log), self.now))

    def propose(self, broker, proposal):
        leadership = broker.partition.leadership
        deliver = self._alter_partition
        self.after(
            self.dice.uniform(0.5, self.rates.controller_ms), deliver, broker, leadership, proposal
        )

    def _alter_partition(self, broker, leadership, proposal):
        is_lost = self.has_faults and self.dice.random() < self.rates.loss / 2
        if is_lost and self.dice.random() < 0.5:
            answer = IsrRefusal.OUTCOME_UNKNOWN  # it never arrived
        else:
            answer = self._decide_isr(proposal)
            if is_lost:
                answer = IsrRefusal.OUTCOME_UNKNOWN
        delay = self.dice.uniform(0.5, self.rates.controller_ms)
        self.after(delay, self._answer, broker, leadership, proposal, answer)

    def _decide_isr(self, proposal):
        state = self.state
        if proposal.leader_epoch != state.leader_epoch:
            return refusal_of(ErrorCode.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != state.partition_epoch:
            if proposal.isr == frozenset(state.isr):
                return state
            return refusal_of(ErrorCode.INVALID_UPDATE_VERSION)
        for member in proposal.members:
            registered = self._registered.get(member.broker_id)
            if registered is None or member.broker_epoch not in (-1, registered):
                return refusal_of(ErrorCode.INELIGIBLE_REPLICA)
        self._write(isr=tuple(member.broker_id for member in proposal.members))
        return self.state

    def _answer(self, broker, leadership, proposal, answer):
        if not broker.is_alive or broker.partition.leadership is not leadership:
            return
        if isinstance(answer, IsrRefusal):
            effects = leadership.isr_refused(proposal, answer, self.now)
        else:
            isr = frozenset(answer.isr)
            effects = leadership.isr_confirmed(proposal, isr, answer.partition_epoch, self.now)
        broker.run(effects)
