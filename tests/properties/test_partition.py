"""A leader against random followers, time, controller answers and bumps of the leader epoch.

The test holds the truth that the leader cannot see: where each follower's log really ends, and
which ISR the controller really has. Followers outside the true ISR may lose the tail of their log.
"""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.core.isr import IsrRefusal
from headrace.core.leadership import Leadership, ReplicationSettings
from headrace.core.partition_effects import HighWatermarkAdvanced, ProposeIsr
from tests.fakes.broken_partitions import CommitsBelowTheMinimum, CountsTheConfirmedIsrOnly
from tests.fakes.partition_states import a_state

LEADER, FOLLOWERS = 1, (2, 3)
LAG_MS = 100
followers = st.sampled_from(FOLLOWERS)


class LeaderAndFollowers(RuleBasedStateMachine):
    leadership_class = Leadership

    @initialize(
        held=st.lists(st.integers(3, 7), min_size=2, max_size=2),
        in_sync=st.sets(followers),
        stale_by=st.integers(1, 4),
        min_insync_replicas=st.sampled_from([2, 1, 3]),
    )
    def elected(self, held, in_sync, stale_by, min_insync_replicas):
        """The new leader has seven records; what the ISR held of them may be committed."""
        self.now = 0
        self.log_end = 7
        self.ends = dict(zip(FOLLOWERS, held, strict=True))
        self.state = a_state(LEADER, 3, (LEADER, *sorted(in_sync)), (LEADER, *FOLLOWERS))
        self.committed_end = min([self.log_end, *(self.ends[b] for b in in_sync)])
        self.pending = None  # a proposal that the controller has not decided about
        self.answers = []  # (proposal, state) that are on their way
        self.minimum = min_insync_replicas
        self.leadership = self.leadership_class(
            LEADER,
            self.state,
            ReplicationSettings(min_insync_replicas, lag_time_ms_max=LAG_MS),
            self.log_end,
            max(0, self.committed_end - stale_by),
            self.now,
        )
        self.take(self.leadership.started())

    def take(self, effects):
        for effect in effects:
            if isinstance(effect, HighWatermarkAdvanced):
                assert effect.to == self.leadership.high_watermark
                assert len(self.state.isr) >= self.minimum, "committed below the minimum"
                self.committed_end = max(self.committed_end, effect.to)
            elif isinstance(effect, ProposeIsr):
                assert self.pending in (None, effect), "two proposals at once"
                self.pending = effect

    # --- followers -----------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def producers_write(self, count):
        self.log_end += count
        self.take(self.leadership.appended(self.log_end, self.log_end))

    @rule(follower=followers, count=st.integers(0, 4))
    def a_follower_fetches(self, follower, count):
        fetched = self.leadership.follower_fetched(follower, self.ends[follower], 0, -1, self.now)
        self.take(fetched)
        self.ends[follower] = min(self.log_end, self.ends[follower] + count)

    @rule(follower=followers, end=st.integers(0, 12))
    def a_follower_outside_the_isr_loses_records(self, follower, end):
        """In a new process: the controller refuses to let the old one in, by its broker epoch."""
        if follower not in self.electable() | self.leadership.maximal_isr:
            self.ends[follower] = min(self.ends[follower], end)

    @rule(ms=st.sampled_from([1, LAG_MS // 2, LAG_MS, LAG_MS + 1]))
    def time_passes(self, ms):
        self.now += ms
        self.take(self.leadership.tick(self.now))

    # --- the controller ------------------------------------------------------

    def electable(self):
        return set(self.state.isr)

    @precondition(lambda self: self.pending is not None)
    @rule(is_eligible=st.booleans())
    def the_controller_decides_about_the_proposal(self, is_eligible):
        """It looks at the epochs first: a proposal that it took before is not refused as such."""
        proposal, self.pending = self.pending, None
        state = self.state
        if proposal.leader_epoch == state.leader_epoch:
            if proposal.partition_epoch == state.partition_epoch:
                if not is_eligible:
                    refusal = IsrRefusal.NOT_APPLIED
                    self.take(self.leadership.isr_refused(proposal, refusal, self.now))
                    return
                isr = tuple(member.broker_id for member in proposal.members)
                self.state = state._replace(isr=isr, partition_epoch=state.partition_epoch + 1)
            self.answers.append((proposal, self.state))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data):
        proposal, state = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        isr = frozenset(state.isr)
        self.take(self.leadership.isr_confirmed(proposal, isr, state.partition_epoch, self.now))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_is_lost(self, data):
        proposal, _ = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.take(self.leadership.isr_refused(proposal, IsrRefusal.OUTCOME_UNKNOWN, self.now))

    @rule(follower=followers, skipped=st.integers(0, 1))
    def a_follower_dies_and_the_leader_epoch_rises(self, follower, skipped):
        """With skipped epochs another broker led: the other follower truncated to its log."""
        isr = tuple(broker_id for broker_id in self.state.isr if broker_id != follower)
        self.state = self.state._replace(
            isr=isr,
            leader_epoch=self.state.leader_epoch + 1 + skipped,
            partition_epoch=self.state.partition_epoch + 1 + skipped,
        )
        if skipped:
            for survivor in isr[1:]:
                self.ends[survivor] = min(self.ends[survivor], self.committed_end)
        self.pending = None
        self.take(self.leadership.epoch_bumped(self.state, self.log_end, self.now))

    # --- what always holds ---------------------------------------------------

    @invariant()
    def every_replica_that_may_lead_next_holds_all_committed_records(self):
        for broker_id in self.electable() - {LEADER}:
            assert self.ends[broker_id] >= self.committed_end

    @invariant()
    def the_leader_counts_the_true_isr(self):
        assert self.electable() <= self.leadership.maximal_isr

    @invariant()
    def acks_all_is_answered_for_committed_records_only(self):
        for offset_end in range(1, self.log_end + 1):
            answer = self.leadership.acknowledgement(offset_end)
            assert (answer is None) == (offset_end > self.leadership.high_watermark)


LeaderAndFollowers.TestCase.settings = settings(stateful_step_count=40)
test_a_leader_commits_only_what_every_electable_replica_holds = LeaderAndFollowers.TestCase


@pytest.mark.parametrize("broken", [CountsTheConfirmedIsrOnly, CommitsBelowTheMinimum])
def test_a_broken_rule_is_found(broken):
    class Broken(LeaderAndFollowers):
        leadership_class = broken

    # The same examples every time, and no search for the smallest one.
    search = settings(
        max_examples=1000,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Broken, settings=search)
