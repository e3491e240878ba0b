"""The app on a fake engine as a process: ``python -m tests.entrypoints.openai.fake_server DRAIN_S DELTAS DELAY_S``.

Prints its port, then serves until a signal ends it.
"""

from __future__ import annotations

import sys

import uvloop

from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.server import serve
from tests.entrypoints.openai.fakes import FakeClient, Script, make_app


async def main(drain_s: float, num_deltas: int, delay_s: float) -> None:
    limits = HttpLimits(drain_timeout_s=drain_s)
    app = make_app(FakeClient(Script(texts=["x"] * num_deltas, delay_s=delay_s)), http=limits)
    await serve(app, "127.0.0.1", 0, limits, lambda port: print(port, flush=True))


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
