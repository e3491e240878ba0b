"""The command line: ``python -m engine COMMAND``. Owns the commands; each one's options are its own module's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from engine import capabilities
from engine.startup import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="engine", description="One LLM server, two engines.")
    commands = parser.add_subparsers(dest="command", required=True)
    # Its options, --help among them, are parsed by engine/serve.py.
    commands.add_parser("serve", help="serve a model over HTTP", add_help=False).set_defaults(run=_serve)
    table = commands.add_parser("capabilities", help="print what each engine can do, as Markdown")
    table.set_defaults(run=_capabilities)
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.run is not _serve:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return guarded(lambda: arguments.run(rest))


def _serve(argv: Sequence[str]) -> int:
    from engine import serve  # the whole HTTP stack, which other commands do not need

    return serve.run(argv)


def _capabilities(_: Sequence[str]) -> int:
    print("| feature | V0 | V1 | held by |\n|---|---|---|---|")
    for row in capabilities.FEATURES:
        print(f"| {row.title} | {row.v0.value} | {row.v1.value} | {', '.join(row.tests)} |")
    return 0
