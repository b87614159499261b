"""``kafka-server-stop``, translated into ``headrace stop``."""

from collections.abc import Sequence

from headrace.cli import values
from headrace.cli.kafka_scripts.syntax import Translation


def translate(arguments: Sequence[str]) -> Translation:
    if "--help" in arguments:
        return Translation(["stop", "--help"])
    if arguments:
        raise values.wrong(
            "kafka-server-stop: name the broker by its data directory, "
            "'headrace stop --data DIR', or by its configuration file, "
            "'headrace stop server.properties'"
        )
    # As the script, which stops every broker of this machine.
    return Translation(["stop", "--all"])
