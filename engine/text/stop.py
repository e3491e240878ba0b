"""``StopMatcher``: stop strings in a stream of text.

Owns when a stop string is complete, where the text ends then, and how much text must be held back
because it may be the beginning of one. Knows nothing of tokens.

Each stop string is followed by a Knuth-Morris-Pratt automaton (SIAM J. Comput. 6(2), 1977): time is
linear in the text whatever the strings, and its state is exactly the number of characters to hold
back. Automata are built as far as a text gets into them, so long stop strings cost nothing up front.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream at the first stop string.

    First is the one whose last character comes first; of several that end there, the longest. So the
    result does not depend on how the stream was cut into pieces.

    Attributes:
        matched: the stop string that ended the stream, or ``None``.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool) -> None:
        self.matched: str | None = None
        self._automata = [_Automaton(stop) for stop in stops]
        self._include = include_in_output
        self._held = ""

    def push(self, text: str, armed: bool = True) -> str:
        """The text that may be shown now; after a match, the last of it.

        A stop string whose last character comes while not ``armed`` is ordinary text.
        """
        if self.matched is not None:
            return ""
        first: tuple[int, int] | None = None
        for automaton in self._automata:
            end = automaton.scan(text, 0)
            while end >= 0 and not armed:
                end = automaton.scan(text, end)
            if end >= 0:
                match = (end, -len(automaton.pattern))
                if first is None or match < first:
                    first, self.matched = match, automaton.pattern
        if first is not None:
            return self._cut(text, *first)
        return self._release(text)

    def finish(self) -> str:
        """The text still held back when the stream ends without a match."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, end: int, minus_length: int) -> str:
        """The text up to a match that ends at ``end`` in ``text``."""
        shown = self._held + text[:end]
        self._held = ""
        return shown if self._include else shown[:minus_length]

    def _release(self, text: str) -> str:
        """Adds ``text`` and shows all but the longest tail that may yet become a stop string."""
        if self._include:
            return text
        hold = max([automaton.state for automaton in self._automata], default=0)
        text = self._held + text
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


class _Automaton:
    """Where a text stands in one pattern."""

    __slots__ = ("_borders", "pattern", "state")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        #: Length of the longest beginning of the pattern that the text so far ends with.
        self.state = 0
        #: [k] is the longest proper border of the pattern's first k characters; made on demand.
        self._borders = [0, 0]

    def scan(self, text: str, start: int) -> int:
        """Reads ``text[start:]`` up to the first match; returns the index behind it, or -1."""
        pattern, state, index = self.pattern, self.state, start
        while index < len(text):
            if state == 0:
                index = text.find(pattern[0], index)
                if index < 0:
                    break
            else:
                while state and pattern[state] != text[index]:
                    state = self._border(state)
            if pattern[state] == text[index]:
                state += 1
            index += 1
            if state == len(pattern):
                self.state = self._border(state)
                return index
        self.state = state
        return -1

    def _border(self, length: int) -> int:
        pattern, borders = self.pattern, self._borders
        while len(borders) <= length:
            char = pattern[len(borders) - 1]
            border = borders[-1]
            while border and pattern[border] != char:
                border = borders[border]
            borders.append(border + 1 if pattern[border] == char else 0)
        return borders[length]
