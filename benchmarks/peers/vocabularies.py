"""Our tokenizers against the ids of others: llama.cpp's vocabulary files, a tokenizer.json, Mistral's own libraries.

    python benchmarks/peers/vocabularies.py [--vocabularies FOLDER] [--pair GGUF TOKENIZER_JSON ...] [--mistral FOLDER]

FOLDER of `--vocabularies` holds `ggml-vocab-*.gguf` with `.inp` and `.out` beside them (the folder `models` in the source
distribution of llama-cpp-python). `--pair` compares the tokenizer of a GGUF with the tokenizer.json of the same model.
`--mistral` wants the folder `data` of mistral-common, and that package with sentencepiece installed here.

Prints one line for each file and up to three texts that differ. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from outrider.core.base.errors import ModelError
from outrider.core.formats.gguf.reader import GGUFFile
from outrider.core.text.files import TokenizerFiles, fingerprint, vocabulary
from outrider.core.text.rebuild import rebuild
from outrider.core.text.tokenizer import Tokenizer
from outrider.core.text.vocabulary import Splitting

TEXTS = [
    *("", " ", "   ", "\n", "\n\n", "\t\t", " \n ", "Hello", " Hello", "Hello ", "Hello, world!", "hello world  foo"),
    *("I'll pay 12345 €!\n\n x", "You're WE'RE they'd I'M", "résumé naïve café", "re\u0301sume\u0301", "Việt Nam"),
    *(
        "日本語のテキストです。",
        "中文字符测试，你好！",
        "한국어 텍스트",
        "ไทยภาษา",
        "हिन्दी में पाठ",
        "العربية עברית",
        "Русский",
    ),
    *(
        "🙂",
        "👩‍👩‍👧‍👦 and 🏳️‍🌈!",
        "👍🏽👍🏿🇩🇪🇫🇷",
        "1️⃣",
        "\u200b\u200d\ufeff",
        "\u00a0nbsp\u00a0",
        "\u2028\u2029",
        "\x00\x01\x02\x7f",
    ),
    *(
        "\x1b[31mred\x1b[0m",
        "\r\n\r\n",
        "a\rb",
        "    four\n        eight\n\tTab",
        " " * 200 + "x",
        "\n" * 50,
        "\t" * 40,
    ),
    *("x" * 500, "ab" * 300, "=" * 100, "HelloWorldFooBar", "helloWORLD", "snake_case_name", "SCREAMING_CASE"),
    *("def f(x):\n    return x ** 2  # square\n", "for (int i=0; i<10; ++i) { a[i] = i*2; }", "<html>&nbsp;</html>"),
    *('{"a": [1, 2.5, null]}', "\\frac{1}{2} $x^2$", "http://example.com/a?b=c&d=%20#e", "C:\\Windows\\x.txt"),
    *("1234567890", "3.14159", "1,000,000", "½ ² ³ ¼", "Ⅷ ⅷ", "٣٤٥", "०१२", "0x1F", "1e-10", "３４５"),
    *(
        "<0x0A>",
        "Ġ",
        "\U0010ffff",
        "\ue000",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
        "ﬁ ﬂ",
        "İstanbul ıI",
        "ß ẞ",
        "… — “quotes” ‘single’",
        "┌─┐│█▓▒░",
    ),
    *("\u0301alone", "क्षि", "𠮷野家", "ｶﾞ", "'s 't 're 'S 'LL", "``` ```\n```", "a/b/c//d///\n", "#\n##\n"),
]
SCRIPTS = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x2500)),
    *((0x3000, 0x3200), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F700), (0x10000, 0x10FFFF), (0, 0x20)),
)


def texts(count: int = 1500) -> list[str]:
    """The list above and mixtures of its words, blanks and random signs."""
    rng = random.Random(7)
    words = [word for text in TEXTS for word in text.split(" ")]
    found = list(TEXTS)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.random()
            if kind < 0.45:
                parts.append(rng.choice(words))
            elif kind < 0.65:
                parts.append(rng.choice([" ", "  ", "\n", "\n\n", "\t", " \n", "    "]))
            else:
                script = rng.choice(SCRIPTS)
                parts.append("".join(chr(rng.randrange(*script)) for _ in range(rng.randrange(1, 6))))
        found.append(rng.choice(["", " "]).join(parts))
    return found


def report(name: str, what: str, ours: Callable[[str], list[int]], wanted: Iterable[tuple[str, list[int]]]) -> bool:
    """One line; True if all ids are equal."""
    rows = [(text, ids, ours(text)) for text, ids in wanted]
    wrong = [row for row in rows if row[1] != row[2]]
    print(f"{name:36} {what:36} {len(rows):6} texts {len(wrong):5} differ")
    for text, ids, found in wrong[:3]:
        print(f"    {text[:60]!a}\n      wanted {ids[:16]}\n      found  {found[:16]}")
    return not wrong


def llama_cpp(file: Path) -> bool:
    """Compare with the ids beside a vocabulary file. They were made without composing accents."""
    metadata = {key: value for key, value in GGUFFile(file).metadata.items() if key.startswith("tokenizer.")}
    kind = f"{metadata.get('tokenizer.ggml.model')} {metadata.get('tokenizer.ggml.pre', '')}"
    began = time.perf_counter()
    try:
        found = vocabulary(TokenizerFiles(file.name, metadata=metadata))
    except ModelError as error:
        print(f"{file.stem:36} {kind:36} refused: {error.message}")
        return True
    composed = isinstance(found.rule, Splitting) and found.rule.composed
    if composed:
        found = replace(found, rule=replace(found.rule, composed=False))
    tokenizer = rebuild(found)
    what = f"{kind}{' (no NFC)' if composed else ''} {time.perf_counter() - began:.2f} s"
    given = file.with_name(file.name + ".inp")
    if not given.exists():
        print(f"{file.stem:36} {what:36} no ids to compare")
        return True
    lines = file.with_name(file.name + ".out").read_text().splitlines()
    wanted = [[int(token) for token in line.split()] for line in lines]
    parts = given.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    return report(
        file.stem,
        what,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        zip(parts, wanted, strict=False),
    )


def pair(file: Path, whole: Path) -> bool:
    """Compare a GGUF with the tokenizer.json of its model. Ids beyond those of the GGUF do not count."""
    metadata = {key: value for key, value in GGUFFile(file).metadata.items() if key.startswith("tokenizer.")}
    rows = len(metadata["tokenizer.ggml.tokens"])
    files = TokenizerFiles(whole.name, tokenizer=whole.read_bytes(), config={"vocab_size": rows})
    ours, theirs = TokenizerFiles(file.name, metadata=metadata), Tokenizer(files)
    same = "same fingerprint" if fingerprint(ours) == fingerprint(files) else "other fingerprint"
    return report(file.stem, same, Tokenizer(ours).encode, ((text, theirs.encode(text)) for text in texts()))


def mistral(folder: Path) -> bool:
    """Compare with sentencepiece and mistral-common on the files that the latter brings."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from sentencepiece import SentencePieceProcessor

    good = True
    for file in sorted(folder.iterdir()):
        began = time.perf_counter()
        if file.name.startswith("tekken"):
            ours = Tokenizer(TokenizerFiles(file.name, tekken=file.read_bytes()))
            theirs = Tekkenizer.from_file(file)
            wanted = [(text, theirs.encode(text, bos=False, eos=False)) for text in texts()]
        elif ".model.v" in file.name:
            ours = Tokenizer(TokenizerFiles(file.name, sentencepiece=file.read_bytes()))
            theirs = SentencePieceProcessor(model_file=str(file))
            wanted = [(text, theirs.encode(text)) for text in texts()]
        else:
            continue
        good &= report(file.name, f"{time.perf_counter() - began:.2f} s with theirs", ours.encode, wanted)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=Path)
    parser.add_argument("--pair", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("--mistral", type=Path)
    options = parser.parse_args()
    good = True
    for file in sorted(options.vocabularies.glob("*.gguf")) if options.vocabularies else ():
        good &= llama_cpp(file)
    for file, whole in options.pair:
        good &= pair(file, whole)
    if options.mistral:
        good &= mistral(options.mistral)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
