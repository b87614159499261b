"""Request handlers: one function per API that takes a request and returns a response.

    def name(broker, context, request) -> response          or  async def

The table names them; each is imported on its first request, so that a start need not load them
all. Produce and Fetch are not in the table (``produce.Producing``, ``fetch.Fetching``): they may
respond later, and with ranges of files.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.wire.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.context import Context

Handler = Callable[[Any, Any, Any], Any | Awaitable[Any]]

HANDLERS: dict[int, str] = {
    ApiKey.LIST_OFFSETS: "offsets:list_offsets",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "offsets:offset_for_leader_epoch",
    ApiKey.METADATA: "metadata:metadata",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata:describe_topic_partitions",
    ApiKey.DESCRIBE_CLUSTER: "cluster:describe_cluster",
    ApiKey.API_VERSIONS: "cluster:api_versions",
    ApiKey.FIND_COORDINATOR: "cluster:find_coordinator",
    ApiKey.UPDATE_FEATURES: "cluster:update_features",
    ApiKey.OFFSET_COMMIT: "groups:offset_commit",
    ApiKey.OFFSET_FETCH: "groups:offset_fetch",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_groups:consumer_group_heartbeat",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer_groups:consumer_group_describe",
    ApiKey.OFFSET_DELETE: "groups:offset_delete",
    ApiKey.JOIN_GROUP: "groups:join_group",
    ApiKey.SYNC_GROUP: "groups:sync_group",
    ApiKey.HEARTBEAT: "groups:heartbeat",
    ApiKey.LEAVE_GROUP: "groups:leave_group",
    ApiKey.DESCRIBE_GROUPS: "groups:describe_groups",
    ApiKey.LIST_GROUPS: "groups:list_groups",
    ApiKey.DELETE_GROUPS: "groups:delete_groups",
    ApiKey.CREATE_TOPICS: "topics:create_topics",
    ApiKey.DELETE_TOPICS: "topics:delete_topics",
    ApiKey.CREATE_PARTITIONS: "topics:create_partitions",
    ApiKey.DELETE_RECORDS: "records:delete_records",
    ApiKey.DESCRIBE_CONFIGS: "describe_configs:describe_configs",
    ApiKey.ALTER_CONFIGS: "alter_configs:alter_configs",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "alter_configs:incremental_alter_configs",
    ApiKey.LIST_CONFIG_RESOURCES: "config_resources:list_config_resources",
    ApiKey.DESCRIBE_LOG_DIRS: "log_dirs:describe_log_dirs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "log_dirs:alter_replica_log_dirs",
    ApiKey.INIT_PRODUCER_ID: "producers:init_producer_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions:add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions:add_offsets_to_txn",
    ApiKey.END_TXN: "transactions:end_txn",
    ApiKey.TXN_OFFSET_COMMIT: "transactions:txn_offset_commit",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions:describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions:list_transactions",
    ApiKey.DESCRIBE_PRODUCERS: "producers:describe_producers",
    ApiKey.WRITE_TXN_MARKERS: "producers:write_txn_markers",
    ApiKey.ELECT_LEADERS: "admin:elect_leaders",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "admin:alter_partition_reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "admin:list_partition_reassignments",
    ApiKey.DESCRIBE_ACLS: "admin:describe_acls",
    ApiKey.CREATE_ACLS: "admin:create_acls",
    ApiKey.DELETE_ACLS: "admin:delete_acls",
    ApiKey.CREATE_DELEGATION_TOKEN: "admin:create_delegation_token",
    ApiKey.RENEW_DELEGATION_TOKEN: "admin:renew_delegation_token",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "admin:expire_delegation_token",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "admin:describe_delegation_token",
    ApiKey.SASL_HANDSHAKE: "admin:sasl_handshake",
    ApiKey.SASL_AUTHENTICATE: "admin:sasl_authenticate",
    ApiKey.LEADER_AND_ISR: "controller_requests:leader_and_isr",
    ApiKey.UPDATE_METADATA: "controller_requests:update_metadata",
    ApiKey.STOP_REPLICA: "controller_requests:stop_replica",
    ApiKey.ALTER_PARTITION: "controller_apis:alter_partition",
    ApiKey.CONTROLLED_SHUTDOWN: "controller_apis:controlled_shutdown",
    ApiKey.ALLOCATE_PRODUCER_IDS: "controller_apis:allocate_producer_ids",
}

_loaded: dict[int, Handler] = {}


def handler(api_key: int) -> Handler:
    """The handler of a supported API."""
    found = _loaded.get(api_key)
    if found is None:
        module, _, name = HANDLERS[api_key].partition(":")
        found = _loaded[api_key] = getattr(import_module(f"{__name__}.{module}"), name)
    return found


def handle(broker: Any, context: "Context", request: Any) -> Any:
    """The response to a request, or an awaitable of it."""
    return handler(context.api_key)(broker, context, request)


async def load_all() -> None:
    """Import the remaining handlers early: later no file descriptor may be left to do so."""
    for api_key in HANDLERS:
        handler(api_key)
        await asyncio.sleep(0)
