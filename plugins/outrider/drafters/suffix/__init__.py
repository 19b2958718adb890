"""Suffix decoding: what followed this context most often, in the chat or in a text of the user's own, follows again.

Sources: SuffixDecoding (arXiv 2411.04975) for the scores, SAM-Decoding (arXiv 2411.10666) for the automaton, REST (arXiv
2311.08252) for a corpus as datastore. A long match is trusted with a long draft; where several continuations are likely
the draft is a tree.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import Committed, Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Target

if TYPE_CHECKING:
    from .corpus import Corpus

MOST = 32  # nodes of a draft, and its depth
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npz")  # endings of files that are no corpus
HELD = 1 << 16  # tokens of the conversation that the automaton holds before it forgets the older half
AHEAD = 16  # tokens of the newer half that are added to the next automaton for each token that comes


class Suffix:
    """The method; it fits every model. Its weights, if any, are a text file: the corpus to look in."""

    api = 1
    free = True
    options: Mapping[str, str] = {"corpus": "a text file to look in too, as --drafter-weights names one"}

    def matches(self, model: ModelInfo) -> Match:
        """Always fits."""
        return Match(Fit.ANY, "continues as the chat did before, the likelier the longer it matches", gain=1.3)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether `weights` is a file that can be a corpus, by how it begins."""
        path = Path(weights).expanduser()
        if path.suffix.lower() in WEIGHTS:
            return Match(Fit.NO, f"its corpus is a text file, and {path.name} holds weights", weights=weights)
        if not path.is_file() or not _is_text(path):
            return Match(Fit.NO, f"its corpus is a text file, and {path.name} is none", weights=weights)
        return Match(Fit.ANY, f"looks in the chat and in {path.name}", gain=1.3, weights=str(path))

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> SuffixDrafter:
        """A drafter with an empty chat; option `corpus` (or the weights) names a text file to look in.

        Raises ModelError if that file cannot be used.
        """
        named = options.get("corpus") or match.weights
        if not named:
            return SuffixDrafter()
        from .corpus import read_corpus

        return SuffixDrafter(read_corpus(Path(str(named)).expanduser(), target.info))


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at the end
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in head


class SuffixDrafter:
    """Follows one conversation. The automaton holds the tokens from `first` on.

    Once it is full the next one, of the newer half, grows beside it and takes its place when it has caught up: to build it at
    once would hold a round up for more than 0.1 s.
    """

    needs = Needs()
    shape = Shape(nodes=MOST, depth=MOST)

    def __init__(self, corpus: Corpus | None = None, limit: int = HELD) -> None:
        self._corpus = corpus
        self._held = limit
        self.free = corpus is None  # the chat takes 10 to 40 us a draft, a corpus up to half a millisecond
        self.reset()

    def reset(self) -> None:
        """Forget the conversation; the corpus stays."""
        self._tokens: list[int] = []
        self._restart(0)

    def advance(self, step: Committed) -> None:
        """Add these tokens."""
        for token in step.tokens.tolist():
            self._tokens.append(token)
            self._chat.add(token)
            if self._chat.size > self._held:
                self._renew()

    def rewind(self, length: int) -> None:
        """Cut the automaton to what it was at `length` tokens; further back than it reaches it is built anew."""
        cut = len(self._tokens) - length
        if cut <= 0:
            return
        del self._tokens[length:]
        if length < self._first:
            self._restart(max(0, length - self._held // 2))
            return
        for _ in range(cut):
            self._chat.undo()
        while self._next_first + self._next.size > length and self._next.size:
            self._next.undo()

    def propose(self, context: Context) -> Draft | None:
        """The best-scored continuation, of the chat or of the corpus."""
        from .propose import best, draft

        nodes = min(context.nodes, MOST)
        guess = best(self._chat, self._chat.matches(), nodes)
        if self._corpus is not None:
            other = best(self._corpus, self._corpus.matches(self._tokens), nodes)
            if other.score > guess.score:
                guess = other
        return draft(guess)

    def fork(self) -> SuffixDrafter:
        """A copy with the same conversation and corpus."""
        copy = SuffixDrafter(self._corpus, self._held)
        copy._tokens = list(self._tokens)
        copy._restart(self._first)
        return copy

    def close(self) -> None:
        """Free both indexes."""
        self.reset()
        self._corpus = None

    def _restart(self, first: int) -> None:
        from .automaton import Automaton

        self._first, self._next_first = first, 0
        self._chat, self._next = Automaton(), Automaton()
        for token in self._tokens[first:]:
            self._chat.add(token)

    def _renew(self) -> None:
        """Let the next automaton grow; where it holds the newest token, it takes over."""
        from .automaton import Automaton

        if not self._next.size:
            self._next_first = len(self._tokens) - self._held // 2
        done = self._next_first + self._next.size
        for token in self._tokens[done : done + AHEAD]:
            self._next.add(token)
        if self._next_first + self._next.size == len(self._tokens):
            self._first, self._chat, self._next = self._next_first, self._next, Automaton()
