"""A child process for the tests of engine/ipc: answers each number with its double."""

import time

import msgspec

from engine.api import ModelLimits
from engine.errors import StartupError
from engine.ipc.child import Boot, Ready, run_child
from engine.ipc.link import EngineSockets


class Ask(msgspec.Struct, array_like=True, tag=0):
    number: int


class Answer(msgspec.Struct, array_like=True, tag=0):
    number: int


def main(boot: Boot, ready) -> None:
    behaviour = boot.config.model.served_name
    if behaviour == "refuse":
        raise StartupError("This child refuses; use another.")
    if behaviour == "crash":
        raise RuntimeError("secret detail")
    if behaviour == "vanish":
        raise SystemExit(7)
    sockets = EngineSockets(boot, Ask, Answer)
    ready(Ready(ModelLimits(10, 20, 30), {"load": 0.5}))
    while behaviour != "deaf":
        ask = sockets.receive(None)
        assert ask is not None
        sockets.send(Answer(ask.number * 2))
    time.sleep(600)


if __name__ == "__main__":
    run_child(main)
