"""CRC-32C, from the native module alone.

The ``crc32c`` package reads its own version number when it is imported, which
pulls in the e-mail parser and more: 70 ms, half of what the whole broker may
take to start. Only its compiled module is needed, so that one is loaded by
itself. Should the package ever be laid out differently, the slow way works.
"""

import importlib.machinery
import importlib.util
from collections.abc import Callable


def _native_crc32c() -> Callable[..., int]:
    package = importlib.machinery.PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        spec = importlib.machinery.PathFinder.find_spec(
            "crc32c._crc32c", package.submodule_search_locations
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            native: Callable[..., int] = module.crc32c
            return native
    from crc32c import crc32c

    return crc32c


# Takes any contiguous buffer, a memoryview too; the GIL is released for long ones.
crc32c = _native_crc32c()
