"""Bounded, typed reads from untrusted metadata (``config.json``, GGUF keys). Torch-free.

Owns the checks of one value and the wording when it fails. Which fields a model has, and how
they depend on each other, is the business of the two config readers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError

_MAX_SHOWN = 120


def show(value: object) -> str:
    """``repr`` of untrusted data for a one-line message: no line breaks, no flood."""
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def read_json_object(path: str, max_bytes: int) -> dict[str, Any]:
    """The object that a small JSON file holds.

    Raises:
        ModelError: the file cannot be read, is larger than ``max_bytes`` or holds anything else.
    """
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelError(f"{name} cannot be read ({error.strerror}); check the model directory.") from None
    if len(data) > max_bytes:
        raise ModelError(f"{name} is larger than {max_bytes >> 20} MiB; it is not the {name} of a model.")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ModelError(f"{name} is not valid JSON; download it again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{name} must hold a JSON object, not {show(value)}.")
    return value


class Fields:
    """Checked access to one mapping; ``where`` names the file in messages, ``prefix`` the nested object.

    Every getter raises ``ModelError`` naming the field, its value and what is allowed. A field that
    is absent or null has the default; without a default it is an error.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def get(self, name: str) -> Any:
        """The raw value; ``None`` when it is absent."""
        return self._values.get(self._prefix + name)

    def has_null(self, name: str) -> bool:
        """Whether the field is there and null, which can mean more than its absence."""
        return self._prefix + name in self._values and self.get(name) is None

    def label(self, name: str) -> str:
        """The field as messages call it."""
        return f"{self._where}: {self._prefix}{name}"

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a finite number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        return None if self.get(name) is None else self.number(name, low, high)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def nested(self, name: str) -> Fields | None:
        """The object in a field; ``None`` when it is absent, null or empty."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        if not value:
            return None
        return Fields({f"{name}.{key}": inner for key, inner in value.items()}, self._where, f"{name}.")

    def token_ids(self, name: str, vocab_size: int, most: int = 64) -> tuple[int, ...]:
        """One id or a list of ids of the vocabulary; absent is none."""
        value = self.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if len(ids) > most or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
            raise self._wrong(name, f"a token id from 0 to {vocab_size - 1}, or a list of at most {most}")
        return tuple(ids)

    def refuse_unless(self, name: str, *harmless: Any) -> None:
        """Refuses a field that changes the model's maths, unless it is absent or has a value that does not.

        Raises:
            ModelError: the field asks for something this package does not compute.
        """
        value = self.get(name)
        if value is not None and not any(type(value) is type(other) and value == other for other in harmless):
            raise ModelError(f"{self.label(name)} = {show(value)} is not supported; use a model without it.")

    def _wrong(self, name: str, wanted: str) -> ModelError:
        if self.get(name) is None:
            return ModelError(f"{self.label(name)} is missing; it must be {wanted}.")
        return ModelError(f"{self.label(name)} is {show(self.get(name))}; it must be {wanted}.")


def finite_positive(values: list[float]) -> bool:
    """Whether every value is a finite number above zero."""
    return all(math.isfinite(value) and value > 0 for value in values)
