"""A sink in its own process, which the test kills: ``python sql_sink_process.py KIND TARGET …``."""

import sys
import time

from headrace.ship import SqlSink


def open_database(kind, target):
    if kind == "sqlite":
        import sqlite3

        return sqlite3.connect(target, timeout=60), sqlite3.paramstyle
    import pg8000.dbapi

    connection = pg8000.dbapi.connect("postgres", database="postgres", unix_sock=target)
    return connection, pg8000.dbapi.paramstyle


def make_sink(kind, target, bootstrap, topic, *, pause_s=0.0, **options):
    connection, style = open_database(kind, target)
    connection.close()
    place = "?" if style == "qmark" else "%s"

    def write(cursor, records):
        rows = [(one.partition, one.offset, (one.value or b"").decode()) for one in records]
        cursor.executemany(f"insert into copied values ({place}, {place}, {place})", rows)
        time.sleep(pause_s)  # a transaction is open whenever the process is killed

    return SqlSink(
        lambda: open_database(kind, target)[0], bootstrap, topic, write, paramstyle=style, **options
    )


if __name__ == "__main__":
    make_sink(*sys.argv[1:5], pause_s=0.02, batch_records=50).run()
