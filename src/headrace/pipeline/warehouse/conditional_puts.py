"""Whether a server of S3 honors conditional puts, without which two loads overwrite each other.

A commit to a Delta table is a file that must not exist yet. A server that ignores the header
``If-None-Match`` accepts two commits of the same version, and the rows of one are lost. So a load
lets several threads create the same small table first, with the client that commits later.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType

from headrace.pipeline.errors import LoadStopped, reason
from headrace.pipeline.warehouse.files import unique_name
from headrace.pipeline.warehouse.storage import Location

_WRITERS = 4
_ROUNDS = 20
_CREATED, _REFUSED = "created", "refused"


def check_conditional_puts(location: Location) -> None:
    """Raises LoadStopped if the server ignores them, or if it cannot be used at all."""
    if not location.url.startswith("s3://"):
        return  # files and HDFS create a file once
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in range(_ROUNDS):
            name = f"_headrace_probe_{unique_name()}"
            start = Barrier(_WRITERS)
            found = list(pool.map(_create, [location / name] * _WRITERS, [start] * _WRITERS))
            location.delete_directory(name)
            if found.count(_CREATED) > 1:
                raise LoadStopped(
                    f"the server of {location} ignores conditional puts (If-None-Match): two loads "
                    "at once would lose rows. Use a server that supports them"
                )
            if _REFUSED in found:
                return
            # A writer that came late saw the file of another. That proves nothing.
    raise LoadStopped(
        f"cannot tell whether the server of {location} honors conditional puts: "
        f"{_ROUNDS} attempts to write the same file at the same time did not meet"
    )


def _create(location: Location, start: Barrier) -> str:
    start.wait()
    try:
        DeltaTable.create(
            location.url,
            Schema([Field("probe", PrimitiveType("long"))]),
            mode="error",
            storage_options=location.storage_options,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        return _REFUSED
    except (DeltaError, OSError) as failed:
        if "already exists" in str(failed):
            return ""
        raise LoadStopped(f"cannot write to {location}: {reason(failed)}") from failed
    return _CREATED
