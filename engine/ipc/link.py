"""The message link between the API process and one engine process. Torch-free.

Two one-way ZMQ sockets over ``ipc://`` in a directory only we can enter: PUSH/PULL, because
they block or say EAGAIN at their high-water mark where ROUTER and PUB drop silently. Owns
addresses, sockets and the child's life; what the messages mean is each engine's business.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.ipc.child import Boot, ChildProcess, Ready
from engine.ipc.framing import PROTOCOL_VERSION, Wire

#: Messages a socket may hold before its sender waits; aborts and adds are small and rare.
HIGH_WATER_MARK = 4096

Request = TypeVar("Request")
Output = TypeVar("Output")


class EngineLink(Generic[Request, Output]):
    """The API process's end: starts the engine process, sends requests, receives outputs."""

    def __init__(self, module: str, config: EngineConfig, request_type: Any, output_type: Any) -> None:
        self._module = module
        self._config = config
        self._epoch = secrets.randbits(63)
        self._requests: Wire[Request] = Wire(request_type, self._epoch)
        self._outputs: Wire[Output] = Wire(output_type, self._epoch)
        self._context: zmq.asyncio.Context | None = None
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def dead(self) -> bool:
        return self._child is None or self._child.dead

    async def start(self, on_death: Callable[[str], None]) -> Ready:
        """Starts the process and waits for it. ``on_death`` gets the manner of a later death.

        Raises:
            StartupError: the process refused or failed; nothing of it is left.
        """
        self._directory = Path(tempfile.mkdtemp(prefix="engine-"))  # mode 0700
        self._context = zmq.asyncio.Context(io_threads=1)
        self._send_socket = self._bind(zmq.PUSH, "requests")
        self._receive_socket = self._bind(zmq.PULL, "outputs")
        boot = Boot(
            protocol_version=PROTOCOL_VERSION,
            epoch=self._epoch,
            config=self._config,
            input_address=self._address("requests"),
            output_address=self._address("outputs"),
            log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()),
        )
        child = ChildProcess.spawn(self._module, boot)
        self._child = child
        try:
            ready = await child.wait_ready()
        except BaseException:
            await self.close()
            raise
        death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._death = death

        def died() -> None:
            death.set_result(child.describe_exit())
            on_death(death.result())

        child.watch(died)
        return ready

    async def wait_dead(self) -> str:
        """Returns how the process ended, once it has without ``close``; call it after ``start``."""
        return await asyncio.shield(self._death)

    async def send(self, message: Request) -> None:
        """Queues ``message`` for the engine process, in order.

        Raises:
            EngineDeadError: the process has ended.
            ProtocolError: the message is too large.
        """
        frames = self._requests.encode(message)
        if self.dead:
            raise EngineDeadError
        await self._send_socket.send_multipart(frames)

    async def receive(self) -> Output:
        """The next message of the engine process.

        Raises:
            ProtocolError: something else than our engine process wrote to the socket.
        """
        return self._outputs.decode(await self._receive_socket.recv_multipart())

    async def close(self) -> None:
        """Ends the process and removes the sockets. Idempotent."""
        if self._child is not None:
            self._child.kill()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
            shutil.rmtree(self._directory, ignore_errors=True)

    def _bind(self, kind: int, name: str) -> zmq.asyncio.Socket:
        assert self._context is not None
        socket = self._context.socket(kind)
        _configure(socket)
        socket.bind(self._address(name))
        return socket

    def _address(self, name: str) -> str:
        return f"ipc://{self._directory}/{name}"


class EngineSockets(Generic[Request, Output]):
    """The engine process's end. ``receive`` may be called by one thread and ``send`` by another."""

    def __init__(self, boot: Boot, request_type: Any, output_type: Any) -> None:
        self._requests: Wire[Request] = Wire(request_type, boot.epoch)
        self._outputs: Wire[Output] = Wire(output_type, boot.epoch)
        self._context = zmq.Context(io_threads=1)
        self._receive_socket = self._connect(zmq.PULL, boot.input_address)
        self._send_socket = self._connect(zmq.PUSH, boot.output_address)

    def receive(self, timeout_ms: int | None) -> Request | None:
        """The next request; ``None`` if none came in time. A timeout of ``None`` waits for ever.

        Raises:
            ProtocolError: the frames are not a message of this epoch.
        """
        if not self._receive_socket.poll(timeout_ms):
            return None
        return self._requests.decode(self._receive_socket.recv_multipart())

    def send(self, message: Output) -> None:
        """Queues ``message`` for the API process; waits while that reads too slowly."""
        self._send_socket.send_multipart(self._outputs.encode(message))

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        _configure(socket)
        socket.connect(address)
        return socket


def _configure(socket: Any) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
