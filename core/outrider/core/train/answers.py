"""The data of a run: texts as token ids, of each where the target's own part begins. One file of JSON lines that only grows.

What stands there is what a run is judged by: after a kill the half-written last line is dropped, and prompts that were not
answered yet are answered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from outrider.core.base.bounded import TooLong, read_path
from outrider.core.base.errors import Cancelled, ModelError, UsageError
from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    Event,
    Generate,
    Message,
    ModelChoice,
    Report,
    Sampling,
    TrainPrompt,
)
from outrider.core.session.answer_runs import Quiet
from outrider.core.session.engine import Engine
from outrider.core.session.loading import Model

CHUNK = 1024  # prompts that are answered before the next ones are looked at
TOGETHER = 64  # answers at once, and texts that are written down together
TURNS = 64  # of a prompt, at most; numbers of texts count them
LEAST = 8  # tokens that an answer must have room for
LONGEST = 64 << 20  # bytes of a text that is learnt from
LIKELIEST = 64  # tokens that an answer is drawn from: the rest is noise, and costs most of the drawing


class Kept(msgspec.Struct, array_like=True):
    """One text. `number`: its prompt's times `TURNS`, and its turn; `first`: the first token that is to be learnt.

    `said` and `thought`: the answer in words, where another turn follows.
    """

    number: int
    first: int
    ids: list[int]
    said: str = ""
    thought: str = ""


class Answers:
    """The file of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[int, Kept] = {}
        decoder = msgspec.json.Decoder(Kept)
        whole = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                try:
                    kept = decoder.decode(line)
                except msgspec.DecodeError:  # what a power cut left
                    break
                self.kept[kept.number] = kept
                whole += len(line)
            os.truncate(path, whole)

    @property
    def tokens(self) -> int:
        """Tokens to be learnt."""
        return sum(len(kept.ids) - kept.first for kept in self.kept.values())

    def texts(self) -> list[Kept]:
        """All that have something to learn, in the order of their prompts."""
        return [kept for _, kept in sorted(self.kept.items()) if len(kept.ids) - kept.first > 1]

    def add(self, kept: Iterable[Kept]) -> None:
        """Append texts; they are on disk when this returns. Raises ModelError if they cannot be written."""
        encoder = msgspec.json.Encoder()
        try:
            with self.path.open("ab") as file:
                for one in kept:
                    file.write(encoder.encode(one) + b"\n")
                    self.kept[one.number] = one
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ModelError(
                f"The data could not be written to {self.path}: {error.strerror or error}.",
                "Make room and go on with --resume; what was written before is kept.",
            ) from error


class Manner(msgspec.Struct, kw_only=True):
    """How the target answers. A `greedy` share of the answers is made at temperature 0."""

    temperature: float = 0.7
    greedy: float = 0.25
    most: int = 256  # tokens of an answer
    longest: int = 1024  # tokens of a text
    seed: int = 0


class Hooks(NamedTuple):
    """What gets answering, and asked."""

    tell: Callable[[int, int], None]  # how many texts there are, and tokens to be learnt
    warn: Callable[[str], None]  # what the user should know
    cancelled: Callable[[], bool]


class _Asked(NamedTuple):
    """A turn that is to be answered, with its prompt's ids."""

    request: Generate
    ids: list[int]
    last: bool  # no turn follows


def answer(
    engine: Engine,
    choice: ModelChoice,
    prompts: Mapping[int, TrainPrompt],
    manner: Manner,
    answers: Answers,
    hooks: Hooks,
) -> None:
    """Answer those of `prompts` that `answers` does not have, turn after turn, and keep what comes.

    Raises Cancelled, and what generating raises.
    """
    for depth in range(max((turns(prompt) for prompt in prompts.values()), default=0)):
        numbers = [number for number in sorted(prompts) if depth < turns(prompts[number])]
        numbers = [number for number in numbers if number * TURNS + depth not in answers.kept]
        left_out = 0
        for at in range(0, len(numbers), CHUNK):
            some = numbers[at : at + CHUNK]
            asked = [_ask(engine, choice, (number, depth), prompts[number], (manner, answers)) for number in some]
            there = {one.request.id: one for one in asked if one is not None}
            left_out += len(asked) - len(there)
            _together(engine, there, answers, hooks)
        if left_out:
            hooks.warn(
                f"Left out, as there is no room for an answer within {manner.longest} tokens: {left_out} of the prompts."
            )


def turns(prompt: TrainPrompt) -> int:
    """How often a prompt is answered: behind each message of the user that no answer follows."""
    return min(TURNS, len(_ends(prompt))) if prompt.messages is not None else 1


def _together(engine: Engine, asked: Mapping[int, _Asked], answers: Answers, hooks: Hooks) -> None:
    fresh: list[Kept] = []

    def hear(event: Event) -> None:
        if not isinstance(event, Done) or event.finish not in ("stop", "length"):
            return
        fresh.append(_kept(engine, asked[event.request], event.report))
        hooks.tell(len(answers.kept) + len(fresh), answers.tokens + sum(len(one.ids) - one.first for one in fresh))
        if len(fresh) == TOGETHER:
            answers.add(fresh)
            fresh.clear()

    engine.generate_many([one.request for one in asked.values()], hear, Quiet(hooks.cancelled), TOGETHER)
    answers.add(fresh)
    if hooks.cancelled():
        raise Cancelled


def read_texts(path: Path) -> list[str]:
    """What a text file holds, of JSON lines each `text`. Raises UsageError, naming the line, if nothing can be learnt from it."""
    try:
        whole = read_path(path, LONGEST).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}", "Give a text file in UTF-8.") from error
    except TooLong:
        raise UsageError(
            f"{path} has more than {LONGEST >> 20} MB, and that is the most.", "Give a part of it."
        ) from None
    texts = [whole] if path.suffix != ".jsonl" else _lines(path, whole)
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UsageError(f"There is nothing to learn from in {path}.", "Give a file with some text in it.")
    return texts


def cut(model: Model, texts: Sequence[str], longest: int) -> list[Kept]:
    """Texts in pieces of at most `longest` tokens, all of them to be learnt."""
    pieces: list[list[int]] = []
    for text in texts:
        ids = model.tokenizer.encode_raw(text)
        pieces += [ids[at : at + longest] for at in range(0, len(ids), longest)]
    return [Kept(number * TURNS, 1, ids) for number, ids in enumerate(pieces) if len(ids) > 2]


def _lines(path: Path, whole: str) -> list[str]:
    texts: list[str] = []
    for number, line in enumerate(whole.splitlines(), 1):
        if not line.strip():
            continue
        try:
            texts.append(msgspec.json.decode(line, type=_Line).text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(
                f"Line {number} of {path} is no JSON object with a text: {error}", 'Give lines like {"text": "..."}.'
            ) from error
    return texts


class _Line(msgspec.Struct):
    text: str


def _ends(prompt: TrainPrompt) -> list[int]:
    """Places of the messages that are answered."""
    messages = prompt.messages or []
    roles = [message.role for message in messages]
    return [at for at, role in enumerate(roles) if role == "user" and roles[at + 1 : at + 2] in ([], ["user"])]


def _ask(
    engine: Engine,
    choice: ModelChoice,
    place: tuple[int, int],
    prompt: TrainPrompt,
    known: tuple[Manner, Answers],
) -> _Asked | None:
    """What the engine is asked for a turn; the same for the same seed, whatever else is asked with it.

    `place`: number of the prompt, and the turn. None: there is no room, or an earlier turn was left out.
    """
    (manner, answers), (index, depth) = known, place
    number = index * TURNS + depth
    messages = _told(prompt, depth, [answers.kept.get(index * TURNS + turn) for turn in range(depth)])
    if messages is None and prompt.messages is not None:
        return None
    luck = int.from_bytes(hashlib.sha256(f"{manner.seed} {number}".encode()).digest()[:8])
    greedy = luck % 1000 < 1000 * manner.greedy
    sampling = Sampling(
        temperature=0.0 if greedy else manner.temperature, seed=luck >> 1, top_k=LIKELIEST, top_p=1.0, min_p=0.0
    )
    sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty = 1.0, 0.0, 0.0
    raw = None if prompt.messages is not None else prompt.text
    request = Generate(number, choice, messages, raw, sampling, DrafterChoice(name="none"))
    assert engine.model is not None
    ids = engine.prompt_ids(engine.model, request)
    room = min(manner.longest, engine.model.cache.target.context) - len(ids)
    if room < LEAST:
        return None
    sampling.max_tokens = min(manner.most, room)
    return _Asked(request, ids, depth + 1 == turns(prompt))


def _told(prompt: TrainPrompt, depth: int, earlier: Sequence[Kept | None]) -> list[Message] | None:
    """Messages up to a turn, with the answers of those before it; None where one is missing, or there are no messages."""
    if prompt.messages is None:
        return None
    messages, start = list[Message](), 0
    for end, kept in zip(_ends(prompt), [*earlier, None], strict=False):
        messages += prompt.messages[start : end + 1]
        start = end + 1
        if end == _ends(prompt)[depth]:
            return messages
        if kept is None or not (kept.said or kept.thought):
            return None
        messages.append(Message("assistant", kept.said, kept.thought))
    return None


def _kept(engine: Engine, asked: _Asked, report: Report) -> Kept:
    """A finished answer, with its end if it came to one."""
    assert engine.model is not None
    tokenizer = engine.model.tokenizer
    ids = [*asked.ids, *report.token_ids]
    end = tokenizer.token_id(tokenizer.eos_token) if tokenizer.eos_token else None
    if report.finish == "stop" and end is not None:
        ids.append(end)
    said, thought = ("", "") if asked.last else (report.text, report.thinking)
    return Kept(asked.request.id, len(asked.ids), ids, said, thought)
