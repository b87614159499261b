"""Where a table is: in a directory, on S3 or on HDFS. Only this module knows the difference.

deltalake writes the log of a table, and pyarrow its Parquet files, on executors too: no jar is
needed. Both get the same options, under the names that deltalake gives them. For HDFS both use
hdfs-native, which is no part of pyarrow: its own client needs an installed Hadoop.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import (
    FileSelector,
    FileType,
    FSSpecHandler,
    PyFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)

from headrace.pipeline.errors import LoadStopped, reason
from headrace.spark.failures import BadOption

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*):/+", re.IGNORECASE)
_SCHEMES = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs"}
# Options of deltalake that pyarrow must know too. All may also come from the environment.
_S3_OPTIONS = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
}
# Requests for the sizes of new files wait for the server, not for a core.
_REQUESTS_AT_ONCE = 16


class Location(NamedTuple):
    """The directory of a table; pickled for tasks. Paths below it are relative, with slashes."""

    url: str  # an absolute path, or a URL
    options: tuple[tuple[str, str], ...] = ()  # those of deltalake, for URLs

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        """For tables in a directory only."""
        return self.url

    def __truediv__(self, name: str) -> "Location":
        return self._replace(url=f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        return "://" not in self.url

    @property
    def storage_options(self) -> dict[str, str] | None:
        return dict(self.options) or None

    def create(self, path: str) -> BinaryIO:
        """A new file. ``finish`` closes it; an existing one is an error in a directory."""
        if not self.is_directory:
            file: BinaryIO = _client(self).open_output_stream(path)
            return file
        target = Path(self.url, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")

    def finish(self, path: str, file: BinaryIO) -> None:
        """Close a new file, which is durable after that."""
        if not self.is_directory:
            file.close()
            return
        file.flush()
        os.fsync(file.fileno())
        file.close()
        _sync_directory(Path(self.url, path).parent)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[Any]:
        """An open Parquet file. Raises LoadStopped if it cannot be opened or read."""
        try:
            source = (
                Path(self.url, path) if self.is_directory else _client(self).open_input_file(path)
            )
            with pq.ParquetFile(source) as file:
                yield file
        except (OSError, pa.ArrowException) as broken:
            raise LoadStopped(
                f"{self / path} cannot be read: {reason(broken)}. Restore the file, or load its "
                "records again with --reload-from"
            ) from broken

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """The size of each file; None for one that does not exist."""
        if self.is_directory or len(paths) < 2:
            return [self._size(path) for path in paths]
        with ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(paths))) as pool:
            return list(pool.map(self._size, paths))

    def _size(self, path: str) -> int | None:
        if self.is_directory:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return Path(self.url, path).stat().st_size
            return None
        found = _client(self).get_file_info(path)
        return int(found.size) if found.type is FileType.File else None

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        if self.is_directory:
            Path(self.url, path).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            _client(self).delete_file(path)

    def delete_directory(self, name: str) -> None:
        """Delete a directory on S3 or HDFS, with all its files."""
        _client(self).delete_dir(name)

    def directories(self) -> list[str]:
        """The names of the directories in this one; none if it does not exist.

        Raises LoadStopped if the server does not tell.
        """
        if self.is_directory:
            path = Path(self.url)
            found = path.iterdir() if path.is_dir() else ()
            return sorted(one.name for one in found if one.is_dir())
        try:
            entries = _client(self).get_file_info(FileSelector("", allow_not_found=True))
        except OSError as failed:
            raise LoadStopped(f"cannot list {self}: {reason(failed)}") from failed
        return sorted(one.base_name for one in entries if one.type is FileType.Directory)


def for_spark(path: object) -> str:
    """A local path for Spark, whose default file system may be another: HDFS, with YARN."""
    return f"file:{Path(str(path)).absolute()}"


def location_of(place: Path | Location) -> Location:
    return place if isinstance(place, Location) else Location(str(place.absolute()))


def parse_location(text: str, options: Mapping[str, str]) -> Location:
    """From the command line. Raises BadOption."""
    found = _URL.match(text)
    if found is None:
        if options:
            raise BadOption(f"--storage-option is for s3:// and hdfs://, and {text} is a directory")
        return location_of(Path(text))
    scheme = _SCHEMES.get(found["scheme"].lower())
    rest = text[found.end() :].strip("/")
    if scheme is None or not rest:
        raise BadOption(
            f"{text!r} is not the place of a table: expected a directory, s3://BUCKET/PATH or "
            "hdfs://HOST:PORT/PATH"
        )
    return Location(f"{scheme}://{rest}", tuple(sorted(options.items())))


def _client(location: Location) -> Any:
    if location.url.startswith("s3://"):
        return SubTreeFileSystem(location.url.removeprefix("s3://"), _s3(location.options))
    parts = urlsplit(location.url)
    return SubTreeFileSystem(parts.path, _hdfs(parts.hostname, parts.port))


# Creating a client costs a request or more, and a pipeline has many tables on one server.
@lru_cache(maxsize=8)
def _s3(options: tuple[tuple[str, str], ...]) -> Any:
    given = {name.lower(): value for name, value in options}
    known: dict[str, Any] = {
        ours: given[theirs] for theirs, ours in _S3_OPTIONS.items() if theirs in given
    }
    known.setdefault("region", os.environ.get("AWS_REGION", "us-east-1"))
    endpoint = given.get("aws_endpoint_url", os.environ.get("AWS_ENDPOINT_URL", ""))
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        known |= {"endpoint_override": host, "scheme": scheme or "https"}
    return S3FileSystem(**known)


@lru_cache(maxsize=8)
def _hdfs(host: str | None, port: int | None) -> Any:
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError as missing:
        raise LoadStopped(
            f"hdfs:// needs {missing.name}, here and on every executor: "
            "pip install 'headrace[hdfs]'"
        ) from missing
    return PyFileSystem(FSSpecHandler(HdfsFileSystem(host=host, port=port)))


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
