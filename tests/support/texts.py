"""Prompts for tests: English of any length, made from a fixed text, the same in every run."""

from __future__ import annotations

_TEXT = (
    "The ship left the harbour at first light with a cargo of salt, rope and letters. Nobody on board had "
    "slept. The captain, who had made this crossing forty times, stood at the rail and counted the lamps on "
    "the shore as they went out one by one. There were rumours of ice further north, and of a new island that "
    "no chart showed. In the hold, two boys from the village argued about whether fish can hear. The cook "
    "boiled coffee and sang. By noon the wind had turned, the sea was the colour of slate, and the first of "
    "the great birds had begun to follow them, patient and silent, as if it knew exactly where they would go. "
)
WORDS = (_TEXT * 8).split()


def passage(seed: int, num_words: int) -> str:
    """``num_words`` words starting at a place that depends on ``seed``."""
    start = (seed * 37) % 100
    return " ".join(WORDS[start : start + num_words])
