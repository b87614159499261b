"""``headrace demo``: a broker, a Kafka client, a Spark job, and commands to try next."""

import asyncio
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.demo_cluster import demo_cluster
from headrace.cli.demo_pipeline import demo_pipeline
from headrace.cli.options import CONTEXT_SETTINGS, DEFAULT_BOOTSTRAP, examples
from headrace.cli.serve import connectable, listener_of, start_failure
from headrace.model.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_TOPIC = "greetings"
_RECORDS = (("ann", "hello"), ("bob", "good morning"), ("ann", "how are you?"))
_LIMIT_S = 30.0


app = typer.Typer(
    rich_markup_mode=None,
    invoke_without_command=True,
    context_settings=CONTEXT_SETTINGS,
    epilog=examples(
        "headrace demo", "headrace demo --data /tmp/log --keep-serving", "headrace demo cluster"
    ),
)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="demo")


@app.callback()
def demo(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data directory. The Spark job writes its table to DIR-tables.",
            show_default="a temporary directory, removed at the end",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address to listen on.",
            show_default="127.0.0.1:9092 if it is free, otherwise any port",
        ),
    ] = None,
    keep_serving: Annotated[
        bool | None,
        typer.Option(
            "--keep-serving/--exit",
            help="Keep serving until Ctrl-C, or exit at the end.",
            show_default="keep serving on a terminal",
        ),
    ] = None,
) -> None:
    """Run a demo: a broker, a client and a Spark job.

    The Spark job requires the extra 'pipeline' and Java 17 or newer; otherwise it is skipped.
    """
    if context.invoked_subcommand is not None:
        return
    if keep_serving is None:
        keep_serving = output.is_terminal()
    # SIGTERM and a closed terminal end the demo like Ctrl-C, so that its directory is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as temporary:
        directory = Path(temporary) / "log" if data is None else data.absolute()
        # Not inside the data directory: Kafka would refuse to start with it.
        tables = directory.with_name(f"{directory.name}-tables")
        started_at = time.perf_counter()
        node = Node(directory, listen or _free_address(keep_serving))
        try:
            ready_ms = (time.perf_counter() - started_at) * 1000
            output.heading(f"1. A broker listens on {node.address}, ready after {ready_ms:.0f} ms")
            output.line(f"   Data directory: {directory}")
            _write(node.address)
            _read(node.address)
            _show_files(directory)
            removal = "" if data is not None else _removal(keep_serving)
            _count_page_views(node.address, tables, removal)
            if keep_serving:
                _serve_until_interrupted(node.address)
        finally:
            node.stop()


app.command("cluster", epilog=examples("headrace demo cluster"))(demo_cluster)
app.command(
    "pipeline",
    epilog=examples("headrace demo pipeline", "headrace demo pipeline --events 50000 --once"),
)(demo_pipeline)


class Node:
    """A broker in a thread of this process."""

    def __init__(
        self, directory: Path, listen: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings or {}
        self._ready: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(directory, listen)), name="broker"
        )
        self._thread.start()
        try:
            self.address = self._ready.result(_LIMIT_S)
        except (OSError, ConfigError) as failure:
            self._thread.join(_LIMIT_S)  # its loop needs a thread to close, which an exit refuses
            raise start_failure(failure) from None

    def stop(self) -> None:
        if self._loop is not None and self._broker is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result(_LIMIT_S)
        self._thread.join(_LIMIT_S)

    async def _run(self, directory: Path, listen: str) -> None:
        from headrace.broker.broker import Broker
        from headrace.model.config import BrokerConfig

        try:
            config = BrokerConfig.parse(
                {
                    "listeners": listener_of(listen),
                    "log.dirs": str(directory),
                    **self._settings,
                }
            )
            broker = Broker(config)
            await broker.start()
        except Exception as failure:  # noqa: BLE001  # passed to the waiting thread
            self._ready.set_exception(failure)
            return
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._ready.set_result(connectable(*next(iter(broker.addresses.values()))))
        await broker.wait_stopped()


def _free_address(prefers_default: bool) -> str:
    """The default port, if preferred and free; otherwise any free port."""
    if prefers_default:
        host, _, port = DEFAULT_BOOTSTRAP.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError:
                pass
            else:
                return DEFAULT_BOOTSTRAP
    return "127.0.0.1:0"


def _write(address: str) -> None:
    from confluent_kafka import KafkaError, Message, Producer

    output.heading("\n2. confluent-kafka produces records")
    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise output.CommandFailed(f"a record was not delivered: {error.str()}")
        key = (message.key() or b"").decode()
        value = (message.value() or b"").decode()
        output.line(
            f"   {key}: {value}  →  partition {message.partition()}, offset {message.offset()}"
        )

    for key, value in _RECORDS:
        producer.produce(_TOPIC, value, key, on_delivery=on_delivery)
    if producer.flush(_LIMIT_S):
        raise output.CommandFailed("the broker did not acknowledge the records")


def _read(address: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    output.heading("\n3. … and consumes them")
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(_TOPIC, 0, 0)])
        for _ in _RECORDS:
            message = consumer.poll(_LIMIT_S)
            if message is None or message.error() is not None:
                raise output.CommandFailed("a record did not arrive")
            key = (message.key() or b"").decode()
            output.line(f"   {message.offset()}  {key}: {(message.value() or b'').decode()}")
    finally:
        consumer.close()


def _show_files(directory: Path) -> None:
    output.heading("\n4. The log is plain files in Kafka's format")
    for path in sorted(directory.glob(f"{_TOPIC}-0/*")):
        output.line(f"   {path.relative_to(directory)}  {path.stat().st_size} bytes")


def _removal(keep_serving: bool) -> str:
    """When a temporary directory is removed, for users who want to look into it."""
    return f"  (removed {'at Ctrl-C' if keep_serving else 'now'}; --data DIR keeps it)"


def _count_page_views(address: str, tables: Path, removal: str) -> None:
    """Run a Spark stream from a topic to a table and another topic, if Spark can run."""
    from headrace.cli import demo_job
    from headrace.client.errors import ClientError
    from headrace.spark import demo as pipeline

    missing = pipeline.why_not()
    if missing is not None:
        output.heading("\n5. The Spark job is skipped")
        output.line(f"   {missing}")
        return
    output.heading("\n5. Spark counts page views, without a jar")
    try:
        done = demo_job.run(address, tables, lambda text: output.line(f"   {text}"))
    except ClientError as failure:
        raise output.CommandFailed(f"the Spark job failed: {failure}") from None
    output.heading(f"\n6. {done.views_counted:,} views counted in {done.seconds:.0f} s")
    for page, count in done.top_pages:
        output.line(f"   {count:>8,}  {page}")
    output.line(f"   Delta table: {done.table}{removal}")
    output.line(
        f"   topic {pipeline.BUSIEST!r}: {done.busiest_sent} records, the busiest pages of each "
        "batch, exactly once"
    )
    output.line(f"   consumer group {pipeline.GROUP!r}: lag {done.lag}")


def _print_next_steps(address: str) -> None:
    option = "" if address == DEFAULT_BOOTSTRAP else f" -b {address}"
    output.heading("\nThe broker runs until Ctrl-C. Try in another terminal:")
    headrace = program()
    output.line(f"   {headrace} consume {_TOPIC} --from-beginning --keys{option}")
    output.line(f"   echo 'ann:see you' | {headrace} produce {_TOPIC} -k :{option}")
    output.line(f"   {headrace} topics describe{option}")
    output.line(f"   {headrace} groups list{option}")


def program() -> str:
    """The command to type: after ``make run`` it is in .venv, which is not in PATH."""
    beside = Path(sys.executable).with_name("headrace")
    if shutil.which("headrace") is not None or not beside.exists():
        return "headrace"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def _serve_until_interrupted(address: str) -> None:
    # The user may press Ctrl-C before the last line is printed.
    try:
        _print_next_steps(address)
        threading.Event().wait()
    except KeyboardInterrupt:
        output.line("")
