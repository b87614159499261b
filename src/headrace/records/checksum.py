"""CRC-32C from the native module of the ``crc32c`` package.

Importing the package itself takes 70 ms, half of the broker's start, because it reads its own
version number with the e-mail parser. So only the compiled module is loaded. If a later release
moves it, the normal import still works.
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


# Accepts any contiguous buffer; releases the GIL for long ones.
crc32c = _native_crc32c()
