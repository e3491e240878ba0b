"""engine/ipc: real processes are started, refused, lost and cleaned up."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import EngineDeadError, StartupError
from engine.ipc.link import EngineLink
from tests.ipc.echo_child import Answer, Ask
from tests.support.configs import tiny_config

MODULE = "tests.ipc.echo_child"


def link(behaviour: str) -> EngineLink[Ask, Answer]:
    return EngineLink(MODULE, tiny_config(served_name=behaviour), Ask, Answer)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def test_messages_go_and_come_in_order() -> None:
    it = link("echo")
    ready = await it.start(lambda how: None)
    assert ready.limits.max_model_len == 20 and ready.startup == {"load": 0.5}
    for number in range(100):
        await it.send(Ask(number))
    assert [(await it.receive()).number for _ in range(100)] == list(range(0, 200, 2))
    pid = it.pid
    await it.close()
    await it.close()
    assert pid is not None and gone(pid)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("refuse", "This child refuses; use another."),
        ("crash", "The engine process failed; see its log above."),
        ("vanish", "exit code 7"),
    ],
)
async def test_a_failed_start_is_one_clear_error_and_leaves_nothing(behaviour: str, text: str) -> None:
    it = link(behaviour)
    with pytest.raises(StartupError, match=text):
        await it.start(lambda how: None)
    assert it.dead
    assert not it._directory.exists()


async def test_the_parent_learns_of_a_kill_at_once() -> None:
    it = link("echo")
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await it.start(died.set_result)
    assert it.pid is not None
    os.kill(it.pid, signal.SIGKILL)
    started = time.monotonic()
    assert "SIGKILL" in await asyncio.wait_for(died, 2)
    assert time.monotonic() - started < 0.5
    with pytest.raises(EngineDeadError):
        await it.send(Ask(1))
    await it.close()


async def test_a_deaf_child_does_not_keep_close_waiting() -> None:
    it = link("deaf")
    await it.start(lambda how: None)
    started = time.monotonic()
    await it.close()
    assert time.monotonic() - started < 1


def test_no_orphan_after_kill_9_of_the_parent() -> None:
    code = (
        "import asyncio\n"
        "from tests.ipc.test_processes import link\n"
        "async def main():\n"
        "    it = link('echo'); await it.start(lambda how: None); print(it.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 1
    while not gone(child):
        assert time.monotonic() < deadline, "the child outlived its parent by a second"
        time.sleep(0.005)
