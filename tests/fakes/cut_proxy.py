"""A TCP proxy on loopback that cuts connections, refuses new ones, and loses answers on the way."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_ZOOKEEPER_MULTI = (14).to_bytes(4, "big")


class CutProxy:
    """Passes everything on to ``target_port``. It runs on a thread of its own, so it goes on while
    the event loop of a test is stuck."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut-proxy")
        self._open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._loses_answers = False
        self._loses_next_write = False
        self._lost_answer = threading.Event()
        self.port = 0

    def __enter__(self) -> "CutProxy":
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *failure: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Close every connection, and close new ones at once."""
        self._run(self._cut())

    def heal(self) -> None:
        self._is_cut = self._loses_answers = self._loses_next_write = False

    def lose_answers(self) -> None:
        """Pass requests on, and drop what comes back."""
        self._loses_answers = True

    def lose_answers_from_the_next_write_on(self) -> None:
        """As ``lose_answers``, from the next transaction of a ZooKeeper client on."""
        self._loses_next_write = True

    def wait_for_lost_answer(self, timeout_s: float) -> bool:
        return self._lost_answer.wait(timeout_s)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _close(self) -> None:
        await self._cut()
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_cut:
            writer.transport.abort()
            return
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._open += [writer, there]
        await asyncio.gather(
            self._pass_on(reader, there, self._asked),
            self._pass_on(there_reader, writer, self._loses),
        )

    def _asked(self, request: bytes) -> bool:
        if self._loses_next_write and request[8:12] == _ZOOKEEPER_MULTI:  # after size and number
            self._loses_answers = True
        return False

    def _loses(self, answer: bytes) -> bool:
        if self._loses_answers:
            self._lost_answer.set()
        return self._loses_answers

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        loses: Callable[[bytes], bool],
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                if not loses(data):
                    sink.write(data)
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()
