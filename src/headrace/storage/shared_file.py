"""Finding a file that one of ``log.dirs`` holds for all of them."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.model.errors import ConfigError
from headrace.storage.files import read_file, unlink_if_exists, write_atomically
from headrace.storage.log_directory import LogDirectory

_NOTE = ".location"


def locate(directories: Sequence[LogDirectory], file_name: str) -> Path:
    """The directory that holds the file; the first one if there is no such file yet.

    The other directories note where the file is (``directory.id``). Raises ConfigError if they do
    and the file is missing: its disk is not mounted, and a new file would contradict it.
    """
    holder = _holder(directories, file_name)
    text = f"{holder.directory_id}\n".encode()
    for directory in directories:
        note = directory.path / f"{file_name}{_NOTE}"
        with suppress(OSError):
            if directory is holder:
                unlink_if_exists(directory.files, note)
            elif not directory.files.exists(note) or text != read_file(directory.files, note):
                write_atomically(directory.files, note, text)
    return holder.path


def traces(directories: Sequence[LogDirectory], file_name: str) -> list[Path]:
    """Paths of the file and of the notes about it, as far as they exist. Writes nothing."""
    names = (file_name, f"{file_name}{_NOTE}")
    places = [directory.path / name for directory in directories for name in names]
    return [place for place in places if directories[0].files.exists(place)]


def _holder(directories: Sequence[LogDirectory], file_name: str) -> LogDirectory:
    for directory in directories:
        if directory.files.exists(directory.path / file_name):
            return directory
    for directory in directories:
        note = directory.path / f"{file_name}{_NOTE}"
        if directory.files.exists(note):
            raise ConfigError(
                f"{file_name} is in none of log.dirs, but {note} says that it exists: mount the "
                f"disk that holds it. If it is lost, remove every {note.name} and start again: "
                "topics are then restored from the partition directories that are present, "
                "without their settings"
            )
    return directories[0]
