"""An S3 server in a process of its own: moto's, which can also ignore conditional puts.

Run as a program, it prints its port.
"""

import contextlib
import subprocess
import sys
import urllib.request
import uuid

BUCKET = "warehouse"


@contextlib.contextmanager
def s3_server(*, ignore_conditions=False):
    """Start a server with an empty bucket; yields the storage options to reach it.

    Not a thread: deltalake holds the interpreter's lock during some requests.
    """
    command = [sys.executable, "-m", "tests.fakes.s3_server", *["ignore"] * ignore_conditions]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            create = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
            urllib.request.urlopen(create, timeout=30).close()
            yield {
                "aws_endpoint_url": url,
                "aws_access_key_id": "test",
                "aws_secret_access_key": "test",
                "aws_region": "us-east-1",
                "aws_allow_http": "true",
            }
        finally:
            server.terminate()


def new_url():
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}/views"


def _serve(ignore_conditions):
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)

    def app(environ, start_response):
        if ignore_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1:] == ["ignore"])
