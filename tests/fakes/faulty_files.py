"""The real file system, with calls that a test makes fail or watches."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.world.files import SystemFiles


class FaultyFiles(SystemFiles):
    """A test may also assign a call of its own to the name of a method."""

    def fail(self, error: int, *names: str) -> None:
        """Make these calls fail with the errno ``error``."""

        def refuse(*arguments: Any) -> None:
            raise OSError(error, os.strerror(error))

        for name in names:
            self.before(name, refuse)

    @contextmanager
    def failing(self, error: int, *names: str) -> Iterator[None]:
        self.fail(error, *names)
        yield
        self.repair(*names)

    def before(self, name: str, happening: Callable[..., object]) -> None:
        """Call ``happening`` with the arguments first, each time; it may raise."""
        call = getattr(self, name)

        def called(*arguments: Any) -> Any:
            happening(*arguments)
            return call(*arguments)

        setattr(self, name, called)

    def repair(self, *names: str) -> None:
        """These calls are the real ones again."""
        for name in names:
            delattr(self, name)
