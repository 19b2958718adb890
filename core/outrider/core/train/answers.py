"""The data of a run: texts as token ids, of each where the target's own part begins. One file of JSON lines that only grows.

What stands there is what a run is judged by: after a kill the half-written last line is dropped, and prompts that were not
answered yet are answered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from outrider.core.engine import Engine
from outrider.core.errors import Cancelled, UsageError
from outrider.core.loading import Model
from outrider.core.prompting import Quiet
from outrider.core.protocol import Done, DrafterChoice, Event, Generate, ModelChoice, Sampling, TrainPrompt

CHUNK = 256  # prompts that are answered before the next ones are looked at
TOGETHER = 64  # answers at once


class Kept(msgspec.Struct, array_like=True):
    """One text. `number`: of its prompt; `first`: the index of the first token that is to be learnt."""

    number: int
    first: int
    ids: list[int]


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
                kept = decoder.decode(line)
                self.kept[kept.number] = kept
                whole += len(line)
            os.truncate(path, whole)

    @property
    def tokens(self) -> int:
        """Tokens to be learnt."""
        return sum(len(kept.ids) - kept.first for kept in self.kept.values())

    def texts(self) -> list[Kept]:
        """All of them in the order of their prompts."""
        return [self.kept[number] for number in sorted(self.kept)]

    def add(self, kept: Iterable[Kept]) -> None:
        """Append texts; they are on disk when this returns."""
        encoder = msgspec.json.Encoder()
        with self.path.open("ab") as file:
            for one in kept:
                self.kept[one.number] = one
                file.write(encoder.encode(one) + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Manner(msgspec.Struct, kw_only=True):
    """How the target answers. A `greedy` share of the answers is made at temperature 0."""

    temperature: float = 0.7
    greedy: float = 0.25
    most: int = 256  # tokens of an answer
    seed: int = 0


def answer(
    engine: Engine,
    choice: ModelChoice,
    prompts: Mapping[int, TrainPrompt],
    manner: Manner,
    answers: Answers,
    hooks: tuple[Callable[[int, int], None], Callable[[], bool]],
) -> None:
    """Answer those of `prompts` that `answers` does not have, and keep what comes.

    `hooks`: one is told how many texts there are and how many tokens to be learnt, the other says whether to stop. Raises
    Cancelled, and what generating raises.
    """
    tell, cancelled = hooks
    missing = [number for number in sorted(prompts) if number not in answers.kept]
    for at in range(0, len(missing), CHUNK):
        requests = {number: _request(choice, number, prompts[number], manner) for number in missing[at : at + CHUNK]}
        fresh: list[Kept] = []

        def hear(event: Event, requests: dict[int, Generate] = requests, fresh: list[Kept] = fresh) -> None:
            if not isinstance(event, Done) or event.finish not in ("stop", "length"):
                return
            fresh.append(_kept(engine, requests[event.request], event))
            tell(len(answers.kept) + len(fresh), answers.tokens + sum(len(one.ids) - one.first for one in fresh))
            if len(fresh) == TOGETHER:
                answers.add(fresh)
                fresh.clear()

        engine.generate_many(list(requests.values()), hear, Quiet(cancelled), TOGETHER)
        answers.add(fresh)
        if cancelled():
            raise Cancelled


def from_text(model: Model, path: Path, longest: int) -> list[Kept]:
    """A text file in pieces of at most `longest` tokens, all of them to be learnt. Raises UsageError if there is nothing in it.

    JSON lines give each `text` as a text of its own.
    """
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}", "Give a text file in UTF-8.") from error
    texts = [whole] if path.suffix != ".jsonl" else _lines(path, whole)
    pieces: list[list[int]] = []
    for text in texts:
        ids = model.tokenizer.encode_raw(text) if text.strip() else []
        pieces += [ids[at : at + longest] for at in range(0, len(ids), longest)]
    kept = [Kept(number, 1, ids) for number, ids in enumerate(pieces) if len(ids) > 2]
    if not kept:
        raise UsageError(f"There is nothing to learn from in {path}.", "Give a file with some text in it.")
    return kept


def _lines(path: Path, whole: str) -> list[str]:
    texts: list[str] = []
    for number, line in enumerate(whole.splitlines(), 1):
        if not line.strip():
            continue
        try:
            texts.append(msgspec.json.decode(line, type=TrainPrompt).text or "")
        except msgspec.DecodeError as error:
            raise UsageError(
                f"Line {number} of {path} is no JSON object with a text: {error}", 'Give lines like {"text": "..."}.'
            ) from error
    return texts


def _request(choice: ModelChoice, number: int, prompt: TrainPrompt, manner: Manner) -> Generate:
    """What the engine is asked; the same for the same seed, whatever else is asked with it."""
    luck = int.from_bytes(hashlib.sha256(f"{manner.seed} {number}".encode()).digest()[:8])
    greedy = luck % 1000 < 1000 * manner.greedy
    sampling = Sampling(
        temperature=0.0 if greedy else manner.temperature, seed=luck >> 1, max_tokens=manner.most, top_k=0, top_p=1.0
    )
    return Generate(
        id=number,
        model=choice,
        messages=prompt.messages,
        prompt=prompt.text if prompt.messages is None else None,
        sampling=sampling,
        drafter=DrafterChoice(name="none"),
    )


def _kept(engine: Engine, request: Generate, done: Done) -> Kept:
    """A finished answer, with its end if it came to one."""
    assert engine.model is not None
    tokenizer = engine.model.tokenizer
    prompt = engine.prompt_ids(engine.model, request)
    ids = [*prompt, *done.report.token_ids]
    end = tokenizer.token_id(tokenizer.eos_token) if tokenizer.eos_token else None
    if done.finish == "stop" and end is not None:
        ids.append(end)
    return Kept(request.id, len(prompt), ids)
