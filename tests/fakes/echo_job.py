"""A job that responds as its request demands."""

from headrace.world.job_host import Host


def handle(request: bytes, host: Host) -> None:
    """Respond with each word; ``sleep`` waits first, ``bug`` fails."""
    for word in request.split():
        if word == b"bug":
            raise ZeroDivisionError("a bug")
        if word == b"sleep":
            host.sleep(3600)
        host.respond(word)
