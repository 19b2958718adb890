"""Files that a user names are read up to a bound: devices without end, and files that are far too long, are refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import toys

from outrider.app.chat.compare import race
from outrider.app.commands import _prompts
from outrider.app.render import WrongUsage
from outrider.core.base.bounded import TooLong, read_all, read_path
from outrider.core.base.errors import BrokenFileError, ModelError, UsageError
from outrider.core.formats.checkpoint import describe
from outrider.core.text.files import TokenizerFiles
from outrider.core.text.tokenizer import Tokenizer
from outrider.core.train import answers
from outrider.drafters.suffix import corpus

ENDLESS = Path("/dev/zero")
pytestmark = pytest.mark.skipif(not ENDLESS.exists(), reason="there is no device without end here")


def test_up_to_the_bound_and_no_further(tmp_path: Path) -> None:
    file = io.BytesIO(b"abcdef")
    assert read_all(file, 6) == b"abcdef"
    with pytest.raises(TooLong):
        read_path(ENDLESS, 1000)
    (tmp_path / "x").write_bytes(b"abc")
    assert read_path(tmp_path / "x", 3) == b"abc"
    with pytest.raises(TooLong):
        read_path(tmp_path / "x", 2)
    longer = io.BytesIO(b"a" * 100)
    with pytest.raises(TooLong):
        read_all(longer, 9)
    assert longer.tell() == 10


def test_texts_and_prompts_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LONGEST", 1 << 20)
    monkeypatch.setattr(corpus, "BIGGEST", 1 << 20)
    monkeypatch.setattr(_prompts, "_LONGEST", 1 << 20)
    with pytest.raises(UsageError, match="more than 1 MB"):
        answers.read_texts(ENDLESS)
    with pytest.raises(ModelError, match="a corpus may have 1 MB"):
        corpus.read_corpus(ENDLESS, describe(toys.checkpoint(tmp_path / "tiny")))
    with pytest.raises(WrongUsage, match=r"is longer than 1.0 MB"):
        _prompts.read(str(ENDLESS))


def test_texts_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffeins\r\nzwei\rdrei".encode())
    assert answers.read_texts(path) == ["eins\nzwei\ndrei"]


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    """Each reader says in its own words that it is no JSON of the kind."""
    deep = b'{"zz":' + b"[" * 200_000
    path = tmp_path / "deep.jsonl"
    path.write_bytes(deep)
    with pytest.raises(WrongUsage, match=r"Line 1 of .* is no prompt"):
        _prompts.read(str(path))
    with pytest.raises(UsageError, match=r"Line 1 of .* is no JSON object with a text"):
        answers.read_texts(path)
    with pytest.raises(ValueError, match="race"):
        race.decoded(deep)
    settings = {"tokenizer_class": "GPT2Tokenizer"}
    for files in (
        TokenizerFiles("x", tekken=deep),
        TokenizerFiles("x", tokenizer=deep),
        TokenizerFiles("x", vocab=deep, merges=b"a b", settings=settings),
    ):
        with pytest.raises(BrokenFileError, match="cannot be read"):
            Tokenizer(files)
