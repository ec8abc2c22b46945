"""Tokens to text as they come, without ever splitting a character, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.text.tokenizer import Tokenizer

_CUT = "\ufffd"
# A character is at most four bytes, so at most four tokens: more than that and it is no cut.
_LONGEST_CHARACTER = 4
_CONTEXT = 8


class Detokenizer:
    """Turns a growing list of tokens into text.

    Text depends on neighbouring tokens, so each piece is the difference of two decodings that
    start at the last place where the text was whole. `before` are the tokens that the text goes on
    from: they decide, for instance, whether it begins with a space.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-_CONTEXT:])
        self._context = 0  # decoding starts here
        self._read = len(self._tokens)  # text of tokens before this has been handed out

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is certain now; empty while a character is incomplete."""
        self._tokens += tokens
        text = self._pending()
        if text.endswith(_CUT) and len(self._tokens) - self._read <= _LONGEST_CHARACTER:
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return text

    def flush(self) -> str:
        """What is left when no token will follow; an incomplete character is U+FFFD."""
        text = self._pending()
        self._context = self._read = len(self._tokens)
        return text

    def _pending(self) -> str:
        known = self._tokenizer.decode(self._tokens[self._context : self._read])
        return self._tokenizer.decode(self._tokens[self._context :])[len(known) :]


class StopStrings:
    """Cuts a stream of text at the first stop string, which itself is not handed out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Text that cannot be part of a stop string any more."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:  # the one that ends first, so that it does not matter how the text was cut
            self.stopped = True
            _, begin = min(found)
            out, self._held = self._held[:begin], ""
            return out
        keep = self._possible_start()
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        """What was held back, when no text will follow."""
        out, self._held = self._held, ""
        return out

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that a stop string could begin with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
