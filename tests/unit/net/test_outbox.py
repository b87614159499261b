"""Responses are sent together, none too late; a failure closes only its own connection."""

import asyncio

from headrace.net.outbox import Outbox


class Sender:
    def __init__(self, name, told, bug=None):
        self.name = name
        self.told = told
        self.bug = bug

    def __str__(self):
        return self.name

    def send_answers(self):
        if self.bug is not None:
            raise self.bug
        self.told.append(self.name)

    def close(self):
        self.told.append(f"{self.name} closed")


def run(test, ready_count=9):
    async def body():
        told = []
        test(Outbox(asyncio.get_running_loop(), lambda: ready_count), told)
        await asyncio.sleep(0)
        return told

    return asyncio.run(body())


def test_responses_are_sent_after_all_ready_connections_are_served():
    def test(outbox, told):
        for name in "abc":
            outbox.turn_begins(7.0)
            outbox.put(Sender(name, told), 7.0)
        assert told == []

    assert run(test) == ["a", "b", "c"]


def test_the_last_ready_connection_sends_all_responses():
    def test(outbox, told):
        outbox.put(Sender("a", told), 7.0)
        assert told == []
        outbox.put(Sender("b", told), 7.0)
        assert told == ["a", "b"]

    assert run(test, ready_count=2) == ["a", "b"]


def test_a_connection_served_alone_sends_immediately():
    def test(outbox, told):
        outbox.put(Sender("a", told), 7.0)
        assert told == ["a"]

    assert run(test, ready_count=1) == ["a"]


def test_responses_do_not_wait_for_many_long_turns():
    def test(outbox, told):
        outbox.put(Sender("first", told), 7.0)
        outbox.turn_begins(7.0004)
        outbox.put(Sender("second", told), 7.0004)
        assert told == []
        outbox.turn_begins(7.002)
        assert told == ["first", "second"]
        outbox.put(Sender("third", told), 7.002)
        outbox.turn_begins(7.0021)
        assert told == ["first", "second"]

    assert run(test) == ["first", "second", "third"]


def test_a_response_added_while_others_are_sent_is_sent_too():
    def test(outbox, told):
        class Chatty(Sender):
            def send_answers(self):
                super().send_answers()
                outbox.put(Sender("other", told), 7.0)

        outbox.put(Chatty("one", told), 7.0)
        outbox.send()
        assert told == ["one"]

    assert run(test) == ["one", "other"]


def test_an_error_in_one_closes_only_its_own_connection(caplog):
    def test(outbox, told):
        outbox.put(Sender("bad", told, ValueError("oops")), 7.0)
        outbox.put(Sender("good", told), 7.0)

    for ready_count in (1, 2):  # sent at once, and with others
        assert run(test, ready_count) == ["bad closed", "good"]
        assert "Internal error; closing the connection from bad" in caplog.text
        caplog.clear()
