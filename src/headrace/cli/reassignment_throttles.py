"""The replication throttle of a reassignment: set before it begins, removed when it is over.

As Kafka's tools do: two settings of each topic name the replicas, and two settings of each broker
the rate. A leader sends to the replicas that are added no faster than the rate, and these fetch no
faster. Replicas in sync are not throttled.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from headrace.cli.client import code_name
from headrace.cli.cluster_view import read_topic_settings
from headrace.cli.output import CommandFailed, note
from headrace.cli.reassignment_plan import Move
from headrace.client.cluster import Cluster
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import AlterOperation, ResourceType
from headrace.wire import messages as m

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

Changes = Sequence[tuple[str, str | None]]  # a setting and its value; None restores the default


def throttle(
    cluster: Cluster, moves: Iterable[Move], rate: int, live: Container[int]
) -> dict[str, Changes]:
    """Limit the moves to ``rate`` bytes per second and broker; only ``live`` brokers copy.

    First the topics, then the brokers: while any of these settings is left, a topic shows it.
    Returns the settings of the topics from before, for ``restore``.
    """
    earlier: dict[str, Changes] = {}
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for move in moves:
        leaders.setdefault(move.topic, []).extend(f"{move.partition}:{b}" for b in move.current)
        followers.setdefault(move.topic, []).extend(f"{move.partition}:{b}" for b in move.added)
        brokers.update(move.current, move.target)
    existing = read_topic_settings(cluster, sorted(leaders), [LEADER_REPLICAS, FOLLOWER_REPLICAS])
    for topic, replicas in leaders.items():
        before = {setting.name: setting.value or "" for setting in existing.get(topic, ())}
        earlier[topic] = [
            (name, before.get(name) or None) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        ]
        _change_topic(
            cluster,
            topic,
            [
                (LEADER_REPLICAS, _joined(before.get(LEADER_REPLICAS, ""), replicas)),
                (FOLLOWER_REPLICAS, _joined(before.get(FOLLOWER_REPLICAS, ""), followers[topic])),
            ],
        )
    for broker in sorted(broker for broker in brokers if broker in live):
        _set_rate(cluster, broker, rate)
    return earlier


def restore(cluster: Cluster, earlier: Mapping[str, Changes]) -> None:
    """Give the topics the throttled replicas that they had before ``throttle``."""
    for topic, changes in earlier.items():
        _change_topic(cluster, topic, changes)


def throttled(cluster: Cluster, topics: Iterable[str]) -> dict[str, set[int]]:
    """The topics among these that have throttled replicas, each with the brokers of these."""
    settings = read_topic_settings(cluster, sorted(topics), [LEADER_REPLICAS, FOLLOWER_REPLICAS])
    return {
        topic: {
            int(broker)
            for value in values
            for replica in value.split(",")
            if (broker := replica.rpartition(":")[2]).isdecimal()
        }
        for topic, found in settings.items()
        if (values := [setting.value for setting in found if setting.value])
    }


def remove_throttles(
    cluster: Cluster, topics: Iterable[str], brokers: Collection[int], absent: Iterable[int]
) -> None:
    """Remove the throttles of these topics, and the rates of all ``brokers``.

    ``absent`` are brokers that are down: a throttle that they got before must not slow down
    replication when they are back. The topics come last: see ``throttle``.
    """
    of_topics = throttled(cluster, topics)
    removal = [(name, None) for name in _RATES]
    unreachable = [one for one in brokers if not could_change_broker(cluster, one, removal)]
    # A source that was removed from the partitions is named nowhere else.
    named = {broker for found in of_topics.values() for broker in found}
    gone = {*absent, *(broker for broker in named if broker not in brokers)}
    for broker in (*unreachable, *sorted(gone)):
        _remove_from_absent(cluster, broker)
    for topic in of_topics:
        _change_topic(cluster, topic, [(LEADER_REPLICAS, None), (FOLLOWER_REPLICAS, None)])


def _joined(before: str, added: Iterable[str]) -> str:
    """Replicas that are throttled already stay so."""
    return ",".join(dict.fromkeys([*(one for one in before.split(",") if one), *added]))


def _change_topic(cluster: Cluster, topic: str, changes: Changes) -> None:
    request = _request(ResourceType.TOPIC, topic, changes)
    answer = cluster.ask_controller(
        request,
        m.IncrementalAlterConfigsResponse,
        lambda response: [one.error_code for one in response.responses],
        f"changing the throttle of topic {topic}",
    )
    _check(answer, f"topic {topic}")


def _set_rate(cluster: Cluster, broker: int, rate: int) -> None:
    if not could_change_broker(cluster, broker, [(name, str(rate)) for name in _RATES]):
        note(
            f"broker {broker} does not answer; its throttle is unchanged. It copies nothing now; "
            "run the same command again when it is back"
        )


def could_change_broker(cluster: Cluster, broker: int, changes: Changes) -> bool:
    """A broker changes its own settings. Returns whether it answers."""
    request = _request(ResourceType.BROKER, str(broker), changes)
    try:
        try:
            answer = cluster.ask(broker, request, m.IncrementalAlterConfigsResponse)
        except Disconnected:  # it may have been restarted since the last request
            answer = cluster.ask(broker, request, m.IncrementalAlterConfigsResponse)
    except Disconnected:
        return False
    except Refused as failure:
        if failure.code is ErrorCode.BROKER_NOT_AVAILABLE:
            return False  # it left the cluster since its metadata was read
        raise
    _check(answer, f"broker {broker}")
    return True


def _remove_from_absent(cluster: Cluster, broker: int) -> None:
    request = _request(ResourceType.BROKER, str(broker), [(name, None) for name in _RATES])
    what = f"removing the throttle of broker {broker}"
    answer = cluster.ask_controller(
        request,
        m.IncrementalAlterConfigsResponse,
        lambda response: [one.error_code for one in response.responses],
        what,
    )
    (result,) = answer.responses
    if result.error_code:
        # It is still registered, or the controller is Apache Kafka's, which leaves that to it.
        note(
            f"{what}: {code_name(result.error_code)}. Remove it when the broker is back: headrace "
            f"configs unset broker {broker} {' '.join(_RATES)}"
        )


def _request(
    resource_type: ResourceType, name: str, changes: Changes
) -> m.IncrementalAlterConfigsRequest:
    kind = m.IncrementalAlterConfigsRequest
    return kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    kind.AlterableConfig(
                        name=setting,
                        config_operation=AlterOperation.DELETE
                        if value is None
                        else AlterOperation.SET,
                        value=value,
                    )
                    for setting, value in changes
                ],
            )
        ]
    )


def _check(answer: m.IncrementalAlterConfigsResponse, what: str) -> None:
    for one in answer.responses:
        if one.error_code:
            raise CommandFailed(
                f"changing the throttle of {what}: {code_name(one.error_code)}: "
                f"{one.error_message or 'no reason given'}"
            )
