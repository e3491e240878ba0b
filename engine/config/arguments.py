"""``EngineArgs`` on a command line: one flag a field.

Owns the translation. A flag of a feature that no engine has yet is known by name, so that it can
be refused by name and is never taken for a spelling mistake.
"""

from __future__ import annotations

import argparse
import types
import typing
from dataclasses import Field, fields

from engine import capabilities
from engine.config.engine_args import EngineArgs


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
