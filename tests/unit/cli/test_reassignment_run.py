"""Waiting for moves while the controller is away."""

from types import SimpleNamespace

import pytest

from headrace.cli import reassignment_run
from headrace.cli.output import CommandFailed
from headrace.cli.reassignment_plan import Move
from headrace.client.errors import Disconnected

MOVE = Move("orders", 0, [1], [2], 100)
MOVED = SimpleNamespace(assigned={("orders", 0): [2]})
NOT_MOVED = SimpleNamespace(assigned={("orders", 0): [1]})


def test_a_controller_that_stays_away_ends_the_wait_with_advice(monkeypatch):
    def unanswered(cluster):
        raise Disconnected("listing reassignments did not succeed within 8000 ms")

    monkeypatch.setattr(reassignment_run, "list_reassignments", unanswered)
    monkeypatch.setattr(reassignment_run, "CONTROLLER_AWAY_S_MAX", 0.0)
    with pytest.raises(CommandFailed) as ended:
        reassignment_run.wait(None, [MOVE], how_to_cancel="cancel it so")
    assert "did not succeed" in str(ended.value)
    assert "Run the same command again to wait for it, or cancel it: cancel it so" in str(
        ended.value
    )


def test_a_controller_that_is_away_for_a_while_is_waited_for(monkeypatch, capsys):
    answers = [Disconnected("connection refused"), {}]

    def answered_later(cluster):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(reassignment_run, "list_reassignments", answered_later)
    monkeypatch.setattr(reassignment_run, "POLL_S", 0.0)
    monkeypatch.setattr(reassignment_run, "snapshot", lambda cluster: MOVED)
    assert reassignment_run.wait(None, [MOVE], how_to_cancel="")
    assert "the controller does not answer; waiting" in capsys.readouterr().err


def test_a_move_that_was_cancelled_is_not_called_completed(monkeypatch):
    monkeypatch.setattr(reassignment_run, "list_reassignments", lambda cluster: {})
    monkeypatch.setattr(reassignment_run, "snapshot", lambda cluster: NOT_MOVED)
    monkeypatch.setattr(reassignment_run, "METADATA_AGE_S_MAX", 0.0)
    monkeypatch.setattr(reassignment_run, "POLL_S", 0.0)
    assert not reassignment_run.wait(None, [MOVE], how_to_cancel="")
