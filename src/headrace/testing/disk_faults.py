"""A disk that a test fills: every write fails with ENOSPC until the test frees it again."""

import errno
import os
from typing import Any, NoReturn

from headrace.world.files import StrPath, SystemFiles

_WRITES = ("pwrite", "pwritev", "preallocate", "make_directory", "make_directories")


class FillableFiles(SystemFiles):
    """The real file system. While the disk is not full, its calls are the real ones."""

    def fill(self) -> None:
        for name in _WRITES:
            setattr(self, name, _refuse)
        self.__dict__["disk_usage"] = _full_disk_usage

    def free(self) -> None:
        for name in (*_WRITES, "disk_usage"):
            self.__dict__.pop(name, None)


def _full_disk_usage(path: StrPath) -> tuple[int, int]:
    total, _ = SystemFiles.disk_usage(path)
    return total, 0


def _refuse(*arguments: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
