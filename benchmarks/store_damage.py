"""Damages a store of 400 chats in many ways and looks at what is left: a damaged page may cost what is on it and no more.

    python benchmarks/store_damage.py [--trials 200] [--seed 1] [--show]

Which row is on which page is SQLite's own answer (the dbstat table of the undamaged file; it needs an SQLite with dbstat). In
each trial the store is opened as the chat opens it, and `outrider chats list` and `export --all` are run on the same damage.
As root on Linux it also fills small disks and makes others read-only, else that part is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = 4096
CHATS = 400
NONE_YET = "no chat yet"
TEXT = HEAD = 4  # columns of a message and of a chat
KEYS = {"chat": "id", "node": "id", "answer": "node"}


@dataclass
class Truth:
    """The rows of the undamaged store, the pages that each needs, and the messages on the shown branch of each chat."""

    rows: dict[str, dict[str, tuple[Any, ...]]]
    pages: dict[str, dict[str, set[int]]]
    shown: dict[str, list[str]]


@dataclass
class Sums:
    """What all trials of one kind came to."""

    trials: int = 0
    repaired: int = 0
    unreadable: int = 0
    unnoticed: int = 0
    on_pages: int = 0
    lost: int = 0
    elsewhere: list[str] = field(default_factory=list[str])


def make(path: Path, chance: random.Random) -> None:
    """A store of many chats, a few of them long, a few with long messages."""
    from outrider.app.store.chats import Store
    from outrider.app.store.ids import new_id
    from outrider.app.store.records import Answer, Chat, Node, Pass

    with Store.open(path) as store, store.changing():
        for number in range(CHATS):
            chat, head = new_id(), None
            store.put_chat(
                Chat(id=chat, title=f"Chat {number}", created=1e9 + number, updated=1e9 + number, system="Be kind.")
            )
            for place in range(2 if number % 5 else 6):
                words = chance.randrange(3, 60) if chance.random() < 0.95 else chance.randrange(500, 3000)
                text = f"{number} {place} " + " ".join(chance.choice(("river", "hill", "wood")) for _ in range(words))
                node = Node(
                    id=new_id(), role="assistant" if place % 2 else "user", text=text, parent=head, created=1e9 + number
                )
                if place % 2:
                    ids = [chance.randrange(50_000) for _ in range(words)]
                    steps = [Pass(0.1 * n, "suffix", 2, 1, 2, 0, 8, 0.1, 0.2, 0.3) for n in range(words // 2)]
                    node.answer = Answer(marks="P4A4", ids=ids, kinds=f"A{words}", passes=steps)
                store.put_node(chat, node)
                head = node.id
            store.set_head(chat, head)
    Store.open(path).close()  # has the index of the search built


def make_log(path: Path, killed: Path) -> None:
    """Copy a store as a program that is killed leaves it, in the middle of some more chats."""
    from outrider.app.store.chats import Store

    with Store.open(path) as store:
        for row in store.chats(40):
            store.rename(row.id, f"{row.title} again")
            store.branch(row.id, store.load(row.id).path()[-1].id)
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{killed}{end}")


def truth_of(path: Path) -> Truth:
    """What SQLite says about an undamaged file."""
    with closing(sqlite3.connect(path)) as db:
        rows: dict[str, dict[str, tuple[Any, ...]]] = {}
        pages: dict[str, dict[str, set[int]]] = {}
        for table, key in KEYS.items():
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in ("indexed", "n")]
            found = {
                row[0]: row[1:] for row in db.execute(f"SELECT {key}, {', '.join(names)} FROM {table} ORDER BY rowid")
            }
            order = [name for (name,) in db.execute(f"SELECT {key} FROM {table} NOT INDEXED ORDER BY rowid")]
            rows[table], pages[table] = found, dict(zip(order, _pages(db, table), strict=True))
        parents = dict(db.execute("SELECT id, parent FROM node"))
        shown = {}
        for chat, head in db.execute("SELECT id, head FROM chat"):
            path_up = []
            while head is not None:
                path_up.append(head)
                head = parents[head]
            shown[chat] = path_up[::-1]
    return Truth(rows, pages, shown)


def _pages(db: sqlite3.Connection, table: str) -> Iterator[set[int]]:
    """The pages of each row, in the order of the rows."""
    stat = db.execute(
        "SELECT path, pageno, pagetype, ncell FROM dbstat WHERE name = ? ORDER BY path", (table,)
    ).fetchall()
    more: dict[str, set[int]] = defaultdict(set)
    for path, page, kind, _ in stat:
        if kind == "overflow":
            more[path.partition("+")[0]].add(page)
    for path, page, kind, cells in stat:
        if kind == "leaf":
            for cell in range(cells):
                yield {page} | more[f"{path}{cell:03x}"]


# ------------------------------------------------------------------------------------------------ harm


def noise(data: bytearray, chance: random.Random) -> set[int]:
    """A whole page of noise."""
    page = chance.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = chance.randbytes(PAGE)
    return {page + 1}


def zeros(data: bytearray, chance: random.Random) -> set[int]:
    """A page that was never written."""
    page = chance.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return {page + 1}


def few_bytes(data: bytearray, chance: random.Random) -> set[int]:
    """Eight bytes somewhere in a page."""
    page = chance.randrange(len(data) // PAGE)
    at = page * PAGE + chance.randrange(PAGE - 8)
    data[at : at + 8] = chance.randbytes(8)
    return {page + 1}


def header_bytes(data: bytearray, chance: random.Random) -> set[int]:
    """Eight bytes at the start of a page, where SQLite keeps what is on it."""
    page = chance.randrange(len(data) // PAGE)
    at = page * PAGE + chance.randrange(32)
    data[at : at + 8] = chance.randbytes(8)
    return {page + 1}


def three_pages(data: bytearray, chance: random.Random) -> set[int]:
    """Three pages of noise."""
    return {page for _ in range(3) for page in noise(data, chance)}


def cut_short(data: bytearray, chance: random.Random) -> set[int]:
    """A file that ends early."""
    size = chance.randrange(len(data))
    pages = set(range(size // PAGE + 1, len(data) // PAGE + 1))
    del data[size:]
    return pages


def beside_a_log(data: bytearray, chance: random.Random) -> set[int]:
    """A page of noise in the file of a program that was killed: its log is not yet in the file."""
    return noise(data, chance)


HARMS: dict[str, Callable[[bytearray, random.Random], set[int]]] = {
    "a page of noise": noise,
    "a page of zeros": zeros,
    "8 bytes in a page": few_bytes,
    "8 bytes at its start": header_bytes,
    "3 pages of noise": three_pages,
    "the file cut short": cut_short,
    "a page of noise beside a log": beside_a_log,
}


# ------------------------------------------------------------------------------------------------ what is left


def command(*words: str) -> tuple[int, str, str]:
    """Run one command line in this process."""
    from outrider.app import cli

    out, err = io.BytesIO(), io.BytesIO()
    with io.TextIOWrapper(out) as stdout, io.TextIOWrapper(err) as stderr:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = cli.main(list(words))
            stdout.flush()
            stderr.flush()
        return code, out.getvalue().decode(), err.getvalue().decode()


def look(path: Path, truth: Truth, bad: set[int], sums: Sums) -> list[str]:
    """Open a damaged store as the chat does it; returns what is wrong with the outcome."""
    from outrider.app.store.chats import Store

    before = path.read_bytes()
    with Store.open(path) as store:
        sums.repaired += bool(store.repaired)
        sums.unreadable += store.unreadable
        found = {table: {} if store.unreadable else _rows(store, table, key) for table, key in KEYS.items()}
        wrong, altered = _compared(found, truth, bad)
        sums.unnoticed += bool(altered and not store.repaired and store.trouble is None)
        said = store.repaired or store.lost
        wrong += _count_told(found, truth, bad, said, sums)
        if said and len(bad) == 1:
            wrong += _branches(store, truth, bad)
        if store.repaired:
            kept = Path(store.repaired.partition("is kept as ")[2].partition(".db")[0] + ".db")
            wrong += [] if kept.read_bytes() == before else [f"{kept} is not the damaged file"]
    return wrong


Found = dict[str, dict[str, tuple[Any, ...]]]


def _compared(found: Found, truth: Truth, bad: set[int]) -> tuple[list[str], int]:
    """What is wrong with rows that are on no damaged page, and how many on damaged ones are there but changed."""
    wrong: list[str] = []
    altered = 0
    for table, rows in truth.rows.items():
        safe = {name for name in rows if not truth.pages[table][name] & bad}
        if table == "answer":  # marks of a text that is lost are worth nothing
            safe = {name for name in safe if not truth.pages["node"][name] & bad}
        wrong += [f"{table} {name} is lost" for name in safe - found[table].keys()]
        for name in safe & found[table].keys():
            head_lost = table == "chat" and truth.pages["node"][rows[name][HEAD]] & bad
            if found[table][name] != rows[name] and not head_lost:
                wrong.append(f"{table} {name} is changed")
        altered += sum(found[table].get(name) not in (None, rows[name]) for name in rows.keys() - safe)
    return wrong, altered


def _count_told(found: Found, truth: Truth, bad: set[int], said: str, sums: Sums) -> list[str]:
    """Whether as many messages are said to be lost as are; where that is not known, it is not said."""
    from outrider.app.store.placing import LOST

    lost = sum(name not in found["node"] or found["node"][name][TEXT] == LOST for name in truth.rows["node"])
    sums.on_pages += sum(bool(pages & bad) for pages in truth.pages["node"].values())
    sums.lost += lost
    told = re.search(r"Lost: (?:at least )?(\d+) message", said)
    if not said or "not known" in said or (told is None and not lost):
        return []
    if told is None or int(told[1]) != lost:
        return (
            []
            if "at least" in said and (told is None or int(told[1]) < lost)
            else [f"{lost} are lost; it says: {said}"]
        )
    return []


def _branches(store: Any, truth: Truth, bad: set[int]) -> list[str]:
    """Chats of which not every message has its place on the branch that was shown."""
    wrong = []
    for chat, names in truth.shown.items():
        if truth.pages["chat"][chat] & bad or all(truth.pages["node"][name] & bad for name in names):
            continue
        if [node.id for node in store.load(chat).path()] != names:
            wrong.append(f"chat {chat} is not whole")
    return wrong


def _rows(store: Any, table: str, key: str) -> dict[str, tuple[Any, ...]]:
    names = [row[1] for row in store._db.execute(f"PRAGMA table_info({table})") if row[1] not in ("indexed", "n")]
    return {row[0]: row[1:] for row in store._db.execute(f"SELECT {key}, {', '.join(names)} FROM {table}")}


def trial(whole: bytes, log: bytes, truth: Truth, kind: str, seed: int, sums: Sums) -> list[str]:
    """Damage a store and look at what is left, by three ways in."""
    data = bytearray(whole)
    bad = HARMS[kind](data, random.Random(seed))
    wrong: list[str] = []
    for way in ("open", "list", "export"):
        with tempfile.TemporaryDirectory() as home:
            os.environ["OUTRIDER_HOME"] = home
            path = Path(home) / "data" / "chats.db"
            (path.parent / "chats.writers").mkdir(parents=True, mode=0o700)
            path.write_bytes(data)
            if log:
                Path(f"{path}-wal").write_bytes(log)
            if way == "open":
                sums.trials += 1
                wrong += look(path, truth, bad, sums)
                continue
            words = ("chats", "list") if way == "list" else ("chats", "export", "--all", "--format", "json")
            code, out, err = command(*words)
            if NONE_YET in out + err or (not out.strip() and code == 0):
                wrong.append(f"{words}: {code}, {err}")
            if way == "export" and code == 0:
                there = {node["id"] for chat in json.loads(out)["chats"] for node in chat["nodes"]}
                rows = truth.rows["node"]
                wrong += [
                    f"{one} is not exported" for one in rows if not truth.pages["node"][one] & bad and one not in there
                ]
    return wrong


# ------------------------------------------------------------------------------------------------ full disks


def full_disks(whole: bytes, trials: int, chance: random.Random) -> Counter[str]:
    """Fill small disks to the last byte, then write; counts what was said."""
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for number in range(trials):
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={len(whole) + (1 << 20)}", "tmpfs", place], check=True)
            try:
                told[_on_full_disk(Path(place), whole, chance, number)] += 1
            finally:
                subprocess.run(["umount", place], check=True)
    return told


def _on_full_disk(place: Path, whole: bytes, chance: random.Random, number: int) -> str:
    os.environ["OUTRIDER_HOME"] = str(place)
    path = place / "data" / "chats.db"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(whole)
    left = chance.choice((0, 0, 4096, 8192, 40_000, 120_000))
    with (place / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)):
            pass
    os.truncate(place / "filler", max(0, (place / "filler").stat().st_size - left))
    say = Path(tempfile.gettempdir()) / f"store_damage.{os.getpid()}.json"
    say.write_text(json.dumps([{"role": "user", "content": "river " * 100_000}]))
    words = (
        ("chats", "list"),
        ("chats", "import", str(say)),
        ("chats", "export", "--all", "-o", str(place / "all.json")),
    )
    code, out, err = command(*words[number % 3])
    say.unlink()
    if NONE_YET in out + err or "damaged" in err or path.read_bytes()[:16] != whole[:16]:
        return f"WRONG: {words[number % 3][1]}: {code} {err}"
    if "disk is full" in err.lower() or "no space left" in err.lower():
        return "called a full disk"
    return "listed as ever" if code == 0 and number % 3 == 0 else f"WRONG: {words[number % 3][1]}: {code} {err[:200]}"


def read_only_disks(whole: bytes, log: bytes) -> Counter[str]:
    """Make small disks read-only, with and without the log of a killed program; counts what was said."""
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for beside in (b"", log):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
            try:
                path = Path(place) / "data" / "chats.db"
                path.parent.mkdir(mode=0o700)
                path.write_bytes(whole)
                if beside:
                    Path(f"{path}-wal").write_bytes(beside)
                subprocess.run(["mount", "-o", "remount,ro", place], check=True)
                os.environ["OUTRIDER_HOME"] = place
                for words in (
                    ("chats", "list"),
                    ("chats", "rm", "--undo"),
                    ("chats", "export", "-o", f"{place}/a.md"),
                    ("config", "set", "look.marks", "off"),
                ):
                    _, out, err = command(*words)
                    right = (
                        "file system is read-only" in err.lower() and NONE_YET not in out + err and "chmod" not in err
                    )
                    right &= words[1] != "list" or len(out.splitlines()) > CHATS
                    told["called read-only" if right else f"WRONG: {words[:2]}: {err[:200]}"] += 1
            finally:
                subprocess.run(["umount", place], check=True)
    return told


def main() -> int:
    """Run all trials and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print what is wrong, trial by trial")
    options = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / name) for name in ("app", "core", "plugins", "assets")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        make(path, random.Random(options.seed))
        whole = path.read_bytes()
        truth = truth_of(path)
        killed = Path(folder) / "killed.db"
        make_log(path, killed)
        whole_beside, log = killed.read_bytes(), Path(f"{killed}-wal").read_bytes()
        truth_beside = truth_of(path)
    print(
        f"{CHATS} chats, {len(truth.rows['node'])} messages, {len(whole) // PAGE} pages, SQLite {sqlite3.sqlite_version}\n"
    )
    print(
        "| damage | trials | repaired | unreadable | changed, unnoticed | messages on those pages | of them lost | wrong |"
    )
    print("|---|---|---|---|---|---|---|---|")
    failed = 0
    for kind in HARMS:
        sums = Sums()
        for number in range(options.trials // len(HARMS) + (options.trials % len(HARMS) > 0)):
            seed = (options.seed * 100 + list(HARMS).index(kind)) * 100_000 + number
            if HARMS[kind] is beside_a_log:
                wrong = trial(whole_beside, log, truth_beside, kind, seed, sums)
            else:
                wrong = trial(whole, b"", truth, kind, seed, sums)
            sums.elsewhere += wrong
            if wrong and options.show:
                print(f"<!-- {kind}, {seed}: {wrong[:5]} -->")
        failed += len(sums.elsewhere)
        figures = (
            sums.trials,
            sums.repaired,
            sums.unreadable,
            sums.unnoticed,
            sums.on_pages,
            sums.lost,
            len(sums.elsewhere),
        )
        print(f"| {kind} | {' | '.join(map(str, figures))} |", flush=True)
    if sys.platform == "linux" and os.geteuid() == 0 and shutil.which("mount"):
        told = full_disks(whole, options.trials // 4, random.Random(options.seed))
        fixed = read_only_disks(whole_beside, log)
        failed += sum(count for words, count in (told + fixed).items() if words.startswith("WRONG"))
        print(f"\nFull disks: {dict(told)}. Read-only disks: {dict(fixed)}.")
    print(f"\n{failed} wrong" if failed else "\nNothing is wrong.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
