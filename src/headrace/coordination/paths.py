"""Where things are in the coordination tree: Kafka 3.9's paths.

    /brokers/ids/0                          a live broker, ephemeral
    /brokers/topics/T                       replicas of every partition, topic id
    /brokers/topics/T/partitions/N/state    leader and ISR; its version is the partition epoch
    /controller, /controller_epoch          the controller, and the epoch that fences older ones
    /cluster/id
    /config/topics|brokers|clients|users|ips/X, /config/changes
    /admin/delete_topics, /admin/reassign_partitions, /admin/preferred_replica_election
    /isr_change_notification, /log_dir_event_notification
    /latest_producer_id_block
    /feature                                without levels: Kafka 3.9 stops at any it does not know

Kafka on ZooKeeper has no nodes for the following. They are under our own root:

    /headrace/features                      the feature levels of the cluster
    /headrace/directory_assignment/0        paths of its log directories, by directory.id
    /headrace/directory_assignment/0/T      the directory of each partition of T
    /headrace/pending_deletions/0/ID        a deleted topic whose files are in offline directories
    /headrace/shutting_down/0               the broker epoch that shuts down: it leads nothing more
"""

from headrace.model.ids import BrokerId, TopicId, id_to_text

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
FEATURE_LEVELS = "/headrace/features"
DIRECTORY_ASSIGNMENT = "/headrace/directory_assignment"
PENDING_DELETIONS = "/headrace/pending_deletions"
SHUTTING_DOWN = "/headrace/shutting_down"

# A sequential node gets its number appended to one of these.
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS}/log_dir_event_"

# These exist from the first start on. Parents first.
PERSISTENT = (
    "/brokers",
    BROKER_IDS,
    BROKER_TOPICS,
    BROKER_SEQUENCE,
    "/cluster",
    CONFIG,
    "/config/topics",
    "/config/brokers",
    "/config/clients",
    "/config/users",
    "/config/ips",
    # Kafka 4 has settings of groups and client metrics. Kafka 3.9 does not store any.
    "/config/groups",
    "/config/client-metrics",
    CONFIG_CHANGES,
    "/admin",
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    "/consumers",
    "/headrace",
    DIRECTORY_ASSIGNMENT,
    PENDING_DELETIONS,
    SHUTTING_DOWN,
)


def broker(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def partition(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}"


def partitions(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions"


def state(topic: str, partition: int) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def config(kind: str, name: str) -> str:
    """``kind`` is a child of /config; settings of all brokers are under ``<default>``."""
    # A group may have any name; a node's name has no slash.
    node = name.replace("%", "%25").replace("/", "%2F")
    return f"{CONFIG}/{kind}/{node}"


def configs(kind: str) -> str:
    return f"{CONFIG}/{kind}"


def config_name(node: str) -> str:
    """The name that ``config`` made this node's name from."""
    return node.replace("%2F", "/").replace("%25", "%")


def delete_topic(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def directory_assignment(broker_id: BrokerId) -> str:
    return f"{DIRECTORY_ASSIGNMENT}/{broker_id}"


def pending_deletions(broker_id: BrokerId) -> str:
    return f"{PENDING_DELETIONS}/{broker_id}"


def topic_directories(broker_id: BrokerId, topic: str) -> str:
    return f"{DIRECTORY_ASSIGNMENT}/{broker_id}/{topic}"


def pending_deletion(broker_id: BrokerId, topic_id: TopicId) -> str:
    return f"{PENDING_DELETIONS}/{broker_id}/{id_to_text(topic_id)}"
