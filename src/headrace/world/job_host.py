"""What a job sees of the process that runs it, and how requests and responses are framed."""

from collections.abc import Callable
from struct import Struct

from headrace.world.files import SystemFiles

LENGTH = Struct(">I")  # before each request and each response


class Host:
    def __init__(
        self,
        files: SystemFiles,
        respond: Callable[[bytes], None],
        time: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.files = files
        self.respond = respond
        self.time = time  # monotonic, in seconds
        self.sleep = sleep
