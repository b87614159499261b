"""``headrace features``: describe, upgrade and downgrade the feature levels of a cluster."""

from typing import Annotated

import typer

from headrace.cli import outcomes, output, values
from headrace.cli.broker_requests import open_cluster
from headrace.cli.client import Connection, code_name
from headrace.cli.cluster import features_of
from headrace.cli.cluster_view import read_view
from headrace.cli.health import LEVEL_FOR_TOOLS_ONLY, BrokerFeatures
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientFile,
    ClientSettings,
    Format,
    OutputFormat,
    examples,
    noun,
)
from headrace.client.cluster import Cluster
from headrace.core.features import GROUP_VERSION, TRANSACTION_VERSION
from headrace.wire import messages as m

# UpdateFeatures' kinds of updates.
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_UPDATE_TIMEOUT_MS = 8_000

# Groups and transactions that need a level, as brokers list them.
_NEW_PROTOCOL = "consumer"
_WITHOUT_MEMBERS = ("Empty", "Dead")
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")

app = noun(
    "Describe and change feature levels of the cluster.",
    "headrace features describe",
    "headrace features downgrade transaction.version=1",
)

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the request without changing levels.")
]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="features")


@app.command(epilog=examples("headrace features describe"))
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Show supported and finalized feature levels.

    SUPPORTED is the highest level that every broker supports.
    """
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        supported, finalized = _levels(cluster)
    rows = [
        {"feature": name, "supported": supported.get(name, 0), "finalized": finalized.get(name, 0)}
        for name in sorted({*supported, *finalized})
    ]
    if format is Format.JSON:
        output.document(rows)
    else:
        output.table(["FEATURE", "SUPPORTED", "FINALIZED"], [tuple(row.values()) for row in rows])


@app.command(
    no_args_is_help=True, epilog=examples("headrace features upgrade transaction.version=2")
)
def upgrade(
    levels: Annotated[list[str], typer.Argument(metavar="FEATURE=LEVEL", hidden=True)],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Raise feature levels. Every broker must support them."""
    wanted = _parsed(levels)
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        _update(cluster, wanted, _UPGRADE, dry_run, format)


@app.command(
    epilog=examples(
        "headrace features downgrade transaction.version=1", "headrace features downgrade"
    )
)
def downgrade(
    levels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FEATURE=LEVEL",
            help="Levels to set; if none is given, all levels that a broker does not support go "
            "down to the highest that all brokers support.",
        ),
    ] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Allow a downgrade that may lose data.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    client_file: ClientFile = None,
    format: OutputFormat = Format.TABLE,
) -> None:
    """Lower feature levels.

    The command refuses a downgrade while the level is in use: by consumer groups of the new
    protocol with members, or by open transactions.
    """
    wanted = _parsed(levels or [])
    kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
    with open_cluster(Connection(bootstrap, settings, client_file)) as cluster:
        if not wanted:
            supported, finalized = _levels(cluster)
            wanted = {
                name: supported.get(name, 0)
                for name, level in finalized.items()
                if name != LEVEL_FOR_TOOLS_ONLY and level > supported.get(name, 0)
            }
            if not wanted:
                output.line("Every broker supports the finalized levels; nothing to downgrade")
                return
        if not unsafe:
            _refuse_levels_in_use(cluster, wanted)
        _update(cluster, wanted, kind, dry_run, format)


def _refuse_levels_in_use(cluster: Cluster, wanted: dict[str, int]) -> None:
    brokers = list(read_view(cluster).brokers)
    if GROUP_VERSION in wanted:
        in_use = [
            f"group {group.group_id} of the new protocol has members; stop its consumers first"
            for broker_id in brokers
            for group in cluster.ask(broker_id, m.ListGroupsRequest(), m.ListGroupsResponse).groups
            if group.group_type == _NEW_PROTOCOL and group.group_state not in _WITHOUT_MEMBERS
        ]
        _refuse(in_use)
    if TRANSACTION_VERSION in wanted:
        in_use = [
            f"transaction {transaction.transactional_id} is open; "
            "wait until it ends, or abort it with 'headrace transactions abort'"
            for broker_id in brokers
            for transaction in cluster.ask(
                broker_id, m.ListTransactionsRequest(), m.ListTransactionsResponse
            ).transaction_states
            if transaction.transaction_state in _OPEN
        ]
        _refuse(in_use)


def _refuse(in_use: list[str]) -> None:
    if in_use:
        more = f" (and {len(in_use) - 1} more)" if len(in_use) > 1 else ""
        raise output.CommandFailed(f"{in_use[0]}{more}. --unsafe lowers the level anyway")


def _levels(cluster: Cluster) -> tuple[dict[str, int], dict[str, int]]:
    """The highest levels that every broker supports, and the finalized ones."""
    features, unreachable = features_of(cluster, read_view(cluster))
    if unreachable:
        broker_id, why = next(iter(unreachable.items()))
        raise output.CommandFailed(f"broker {broker_id}: {why}")
    found: list[BrokerFeatures] = list(features.values())
    names = sorted({name for one in found for name in one.supported})
    return (
        {name: min(one.supported.get(name, 0) for one in found) for name in names},
        {name: level for one in found for name, level in one.finalized.items()},
    )


def _parsed(texts: list[str]) -> dict[str, int]:
    found = {}
    for name, level in values.pairs(texts, "feature").items():
        if not level.isdecimal():
            raise values.wrong(f"feature {name}={level}: expected a number as the level")
        found[name] = int(level)
    return found


def _update(
    cluster: Cluster, wanted: dict[str, int], kind: int, dry_run: bool, format: Format
) -> None:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey
    answer = cluster.ask_controller(
        m.UpdateFeaturesRequest(
            timeout_ms=_UPDATE_TIMEOUT_MS,
            feature_updates=[
                update(
                    feature=name,
                    max_version_level=level,
                    allow_downgrade=kind != _UPGRADE,
                    upgrade_type=kind,
                )
                for name, level in wanted.items()
            ],
            validate_only=dry_run,
        ),
        m.UpdateFeaturesResponse,
        lambda response: [response.error_code, *(one.error_code for one in response.results)],
        "updating features",
    )
    # Version 2 has one error for all features.
    errors = {one.feature: (one.error_code, one.error_message) for one in answer.results}
    done = "would be set" if dry_run else "set"
    rows = []
    for name, level in wanted.items():
        code, message = errors.get(name, (0, None))
        if answer.error_code:
            code, message = answer.error_code, answer.error_message
        outcome = (
            outcomes.Outcome("failed", code_name(code), message) if code else outcomes.Outcome(done)
        )
        rows.append((name, level, *outcome))
    outcomes.show(["feature", "level", "status"], rows, format)
