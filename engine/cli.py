"""The command line: ``python -m engine COMMAND``.

Owns argument parsing, log set-up, and how a failed start looks (one line, exit code 2). The
options of an engine are the fields of ``EngineArgs``; a flag of a feature that no engine has
yet is known by name and refused, never ignored.
"""

from __future__ import annotations

import argparse
import logging
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import Field, fields

from engine import capabilities
from engine.config.engine_args import EngineArgs
from engine.envs import read_envs, unknown_variables
from engine.errors import ConfigError, StartupError

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="engine", description="One LLM server, two engines.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve a model over HTTP", add_help=False)
    serve.set_defaults(run=_serve)
    table = commands.add_parser("capabilities", help="print what each engine can do, as Markdown")
    table.set_defaults(run=_capabilities)
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.run is not _serve:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return guarded(lambda: arguments.run(rest))


def guarded(run: Callable[[], int]) -> int:
    """Runs ``run``; a ``StartupError`` becomes one line on stderr and exit code 2."""
    try:
        return run()
    except StartupError as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def set_up_logging() -> None:
    """Logs to stderr at ``ENGINE_LOG_LEVEL``, and names ``ENGINE_*`` variables nobody reads."""
    level = read_envs().log_level
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"ENGINE_LOG_LEVEL is {level!r}; use DEBUG, INFO, WARNING or ERROR.")
    logging.basicConfig(level=level, format="%(levelname)s %(asctime)s %(name)s: %(message)s")
    for name in unknown_variables():
        log.warning("%s is set, but nothing reads it; is it misspelt?", name)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag a field of ``EngineArgs``, and the known flags of absent features."""
    hints = typing.get_type_hints(EngineArgs)
    group = parser.add_argument_group("engine")
    for item in fields(EngineArgs):
        _add_field(group, item, hints[item.name])
    absent = parser.add_argument_group("not built yet (refused by name)")
    for row in capabilities.FEATURES:
        if row.flag is not None and not (row.works_on("v0") or row.works_on("v1")):
            absent.add_argument(
                row.flag, dest="absent_features", action=_AbsentFeature, const=row.name, nargs="?", help=row.title
            )


def engine_args(arguments: argparse.Namespace) -> EngineArgs:
    """The ``EngineArgs`` that were parsed."""
    return EngineArgs(**{item.name: getattr(arguments, item.name) for item in fields(EngineArgs)})


class _AbsentFeature(argparse.Action):
    """Collects the names of features asked for that no engine has."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, option: object = None) -> None:
        asked = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*asked, self.const])


def _add_field(group: argparse._ArgumentGroup, item: Field[object], hint: object) -> None:
    flag = "--" + item.name.replace("_", "-")
    kind = _plain_type(hint)
    if kind is bool:
        group.add_argument(
            flag, default=item.default, action=argparse.BooleanOptionalAction, help=item.metadata["help"]
        )
        return
    group.add_argument(
        flag, default=item.default, type=kind, choices=item.metadata["choices"], help=item.metadata["help"]
    )


def _plain_type(hint: object) -> type:
    """``int`` of ``int | None``."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint


def _serve(argv: Sequence[str]) -> int:
    from engine import serve

    return serve.run(argv)


def _capabilities(_: Sequence[str]) -> int:
    print("| feature | V0 | V1 | held by |\n|---|---|---|---|")
    for row in capabilities.FEATURES:
        print(f"| {row.title} | {row.v0.value} | {row.v1.value} | {', '.join(row.tests)} |")
    return 0
