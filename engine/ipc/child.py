"""One child process and the line to it: start, readiness, death, both ways. Torch-free.

Parent and child share one socketpair, inherited by file descriptor. Over it the child gets
its ``Boot`` message and answers ``Ready`` or ``Failed``; after that nobody writes, and its
end of file *is* the news of a death: the child exits when the parent is gone however it went
(``kill -9`` included), and no signal, heartbeat or poll is needed. The parent learns of the
child's death from a pidfd. What is said after readiness travels over ``ipc/link.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from types import MappingProxyType

import msgspec

from engine.api import ModelLimits
from engine.config import EngineConfig
from engine.errors import EngineError, ProtocolError, StartupError
from engine.ipc.framing import PROTOCOL_VERSION

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_MAX_BOOT_BYTES = 4 * 1024 * 1024
_KILL_WAIT_S = 5.0

#: Defaults of a child's environment. OpenMP's threads wait for each other by spinning, for ever in effect;
#: where anything else wants the cores, the API process for one, a spinning thread keeps off the very thread
#: it waits for. This bounds it to about 0.2 ms: enough to bridge the gaps within a step.
_CHILD_ENVIRONMENT = MappingProxyType({"GOMP_SPINCOUNT": "4000"})


class Boot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message a child receives: everything it needs to start."""

    protocol_version: int
    epoch: int
    config: EngineConfig
    #: ZMQ endpoints: the child pulls requests from one and pushes outputs to the other.
    input_address: str
    output_address: str
    log_level: str


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """The child can serve. ``startup`` is where its start-up time went, in seconds by phase."""

    limits: ModelLimits
    startup: dict[str, float]


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """The child cannot serve. ``message`` is for the user; a traceback, if any, is in the log."""

    message: str


class ChildProcess:
    """The parent's end of one child process."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._process = process
        self._line = line
        self._pidfd = os.pidfd_open(process.pid)
        self._watch_loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def spawn(cls, module: str, boot: Boot) -> ChildProcess:
        """Starts ``python -m module`` and sends it ``boot``.

        The child is the leader of a session of its own, so a Ctrl-C in the terminal reaches only
        the parent, which then decides what to drain.
        """
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with child_end:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(child_end.fileno(),),
                env={**_CHILD_ENVIRONMENT, **os.environ},
                start_new_session=True,
            )
        child = cls(process, parent_end)
        # A child that died at once breaks the pipe; wait_ready reports that properly.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _send_blob(parent_end, msgspec.msgpack.encode(boot))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    async def wait_ready(self) -> Ready:
        """Waits until the child says ``Ready``.

        Raises:
            StartupError: it said ``Failed``, or ended without a word. The process is gone then.
        """
        try:
            blob = await asyncio.to_thread(_receive_blob, self._line)
            answer = msgspec.msgpack.decode(blob, type=Ready | Failed) if blob is not None else None
        except BaseException:
            self.kill()
            raise
        if isinstance(answer, Ready):
            return answer
        self.kill()
        if isinstance(answer, Failed):
            raise StartupError(answer.message)
        raise StartupError(f"The engine process ended during start-up ({self.describe_exit()}); see its log above.")

    def watch(self, on_death: Callable[[], None]) -> None:
        """Calls ``on_death`` once, on the running loop, as soon as the process ends."""
        loop = asyncio.get_running_loop()
        self._watch_loop = loop

        def notice() -> None:
            loop.remove_reader(self._pidfd)
            self._watch_loop = None
            self._process.wait()
            on_death()

        loop.add_reader(self._pidfd, notice)

    def describe_exit(self) -> str:
        """How the process ended, in words."""
        return _describe_exit(self._process)

    def kill(self) -> None:
        """Ends the process now and frees its descriptors. Idempotent."""
        if self._watch_loop is not None and not self._watch_loop.is_closed():
            self._watch_loop.remove_reader(self._pidfd)
            self._watch_loop = None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_KILL_WAIT_S)
        self._line.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def run_child(main: Callable[[Boot, Callable[[Ready], None]], None]) -> None:
    """The child's end: call it from ``__main__`` with the function that does the work.

    ``main`` receives the boot message and a function to call once it can serve. A
    ``StartupError`` it raises before that is sent to the parent instead of a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = socket.socket(fileno=int(sys.argv[1]))
    boot = _receive_boot(line)
    logging.basicConfig(level=boot.log_level, format="%(levelname)s %(asctime)s %(name)s: %(message)s")
    threading.Thread(target=_exit_with_parent, args=(line,), name="death-pipe", daemon=True).start()

    try:
        main(boot, lambda ready: _send_blob(line, msgspec.msgpack.encode(ready)))
    except EngineError as error:
        _send_blob(line, msgspec.msgpack.encode(Failed(str(error))))
        sys.exit(2)
    except MemoryError:
        _send_blob(line, msgspec.msgpack.encode(Failed("The engine process ran out of memory during start-up.")))
        sys.exit(2)
    except Exception:
        log.exception("The engine process failed.")
        _send_blob(line, msgspec.msgpack.encode(Failed("The engine process failed; see its log above.")))
        sys.exit(1)


def _receive_boot(line: socket.socket) -> Boot:
    blob = _receive_blob(line)
    if blob is None:
        sys.exit(1)
    boot = msgspec.msgpack.decode(blob, type=Boot)
    if boot.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(f"The parent speaks protocol {boot.protocol_version}, this process {PROTOCOL_VERSION}.")
    return boot


def _exit_with_parent(line: socket.socket) -> None:
    """Blocks until the parent's end closes. ``os._exit`` because nothing is left to tidy up for."""
    with contextlib.suppress(OSError):
        while line.recv(1):
            pass
    os._exit(0)


def _send_blob(line: socket.socket, blob: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(_LENGTH.pack(len(blob)) + blob)


def _receive_blob(line: socket.socket) -> bytes | None:
    """One length-prefixed blob; ``None`` at end of file."""
    head = _receive_exactly(line, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_BOOT_BYTES:
        raise ProtocolError(f"A boot message has {length} bytes; at most {_MAX_BOOT_BYTES} are allowed.")
    return _receive_exactly(line, length)


def _receive_exactly(line: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = line.recv(size - len(data))
        except ConnectionResetError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "still running"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
