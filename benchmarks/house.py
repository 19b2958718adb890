"""Sizes and structure of checkouts, side by side: lines, helpers, calls of a round, value types of a draft, cycles, imports.

    python benchmarks/house.py [--root PATH ...] [--calls] [--names] [--json FILE]

Without `--root` it looks at the checkout that it is in. With several, the first is the one before. `--calls` also runs a
small model in each checkout, in a process of its own. `--names` lists what the figures count. How each figure is counted is
said where it is counted, and in README.md beside this file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TREES = ("core", "plugins", "app", "assets")
ENGINE = ("core", "plugins")
FILE_LINES, FUNCTION_LINES = 500, 60
CORE, DRAFTERS = "outrider.core", "outrider.drafters"

# Names of today and of names.md. `room:Name` where one name is several classes. What holds a draft: its tokens, parents, depths,
# or another value that does; what tells how it went.
DRAFT = (
    "Draft",
    "DraftTree",
    "Offer",
    "Candidate",
    "policy:Choice",
    "Guess",
    "Sheet",
    "DraftInputs",
    "_Flight",
    "Landed",
)
DRAFT += ("RoundResult", "Round", "Outcome")
OUTCOME = ("Verdict", "device:Kept", "Accepted", "drafting:Step", "Committed")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = dict[str, set[str]]


@dataclass(slots=True)
class Module:
    """One Python file of a checkout."""

    name: str
    path: Path  # relative to the checkout
    text: str
    tree: ast.Module
    imports: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # module, names taken from it

    @property
    def folder(self) -> str:
        return self.path.parent.as_posix()

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


class House:
    """A checkout: its modules, and which of them import which."""

    def __init__(self, root: Path, trees: Iterable[str] = TREES) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for tree in trees:
            for path in sorted((root / tree).rglob("*.py")):
                name = ".".join(path.relative_to(root / tree).with_suffix("").parts).removesuffix(".__init__")
                text = path.read_text("utf-8")
                self.modules[name] = Module(name, path.relative_to(root), text, ast.parse(text))
        for module in self.modules.values():
            module.imports = list(self._imports(module))

    def of(self, *trees: str) -> list[Module]:
        """The modules of these top-level folders."""
        return [module for module in self.modules.values() if module.path.parts[0] in trees]

    def _imports(self, module: Module) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every import of a file, inside functions and under TYPE_CHECKING too."""
        package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, ()) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
                inner = [alias.name for alias in node.names if f"{base}.{alias.name}" in self.modules]
                yield from ((f"{base}.{name}", ()) for name in inner)
                names = tuple(alias.name for alias in node.names if alias.name not in inner)
                if names:
                    yield base, names

    def graph(self, *trees: str) -> Graph:
        """For each module of these folders, the modules of them that it imports."""
        mine = {module.name for module in self.of(*trees)}
        return {name: {to for to, _ in self.modules[name].imports if to in mine and to != name} for name in mine}

    def folders(self, graph: Graph, *, strict: bool) -> Graph:
        """The same for folders. What a folder takes from the folder that it is in counts only where that is `strict`."""
        made: Graph = {}
        for name, others in graph.items():
            own = self.modules[name].folder
            made.setdefault(own, set())
            for other in others:
                to = self.modules[other].folder
                made.setdefault(to, set())
                if to != own and (strict or not own.startswith(f"{to}/")):
                    made[own].add(to)
        return made


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other, largest first. Kosaraju's algorithm, without recursion."""
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        stack = [] if start in seen else [(start, iter(sorted(graph[start])))]
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            fresh = next((other for other in rest if other not in seen), None)
            if fresh is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(fresh)
                stack.append((fresh, iter(sorted(graph[fresh]))))
    back: Graph = {node: set() for node in graph}
    for node, others in graph.items():
        for other in others:
            back[other].add(node)
    found, taken = [], set[str]()
    for root in reversed(order):
        group, todo = [], [] if root in taken else [root]
        taken.add(root)
        while todo:
            node = todo.pop()
            group.append(node)
            todo += (fresh := back[node] - taken)
            taken |= fresh
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found, key=len, reverse=True)


# ------------------------------------------------------------------------------------------------ sizes


def functions(module: Module) -> Iterator[Function]:
    """Every function and method, inner ones too."""
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


def too_long(modules: Iterable[Module]) -> tuple[list[str], list[str]]:
    """Files and functions beyond the limits of the house."""
    files, long = [], []
    for module in modules:
        if module.lines > FILE_LINES:
            files.append(f"{module.path}: {module.lines}")
        for node in functions(module):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                long.append(f"{module.path}:{node.lineno} {node.name}: {lines}")
    return files, long


def private_functions(modules: Iterable[Module]) -> tuple[int, list[str]]:
    """How many private functions there are, and those that are called exactly once in their file.

    Private: one leading underscore. A call is `name(…)` or `anything.name(…)`; handing a function over is no call.
    """
    count, once = 0, []
    for module in modules:
        calls = Counter(
            node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        )
        private = [node.name for node in functions(module) if node.name[0] == "_" and not node.name.startswith("__")]
        count += len(private)
        once += [f"{module.path} {name}" for name in private if calls[name] == 1]
    return count, once


def types(house: House, names: Iterable[str]) -> list[str]:
    """Those of these value types that there are in core, as `module:Name`."""
    wanted = [name.rpartition(":")[::2] for name in names]
    return sorted(
        f"{module.name.removeprefix(f'{CORE}.')}:{node.name}"
        for module in house.of("core")
        if not module.name.startswith((f"{CORE}.train", f"{CORE}.weights", f"{CORE}.library"))
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and any(node.name == name and part in module.name for part, name in wanted)
    )


def room(path: Path) -> str:
    """The room of a file: the folder below core or plugins that it is in; what is in none is the root's."""
    inner = path.parts[3:-1]
    return f"{path.parts[0]}/{inner[0] if inner else '(root)'}"


def rooms(house: House) -> dict[str, tuple[int, int]]:
    """Python files and lines of each room."""
    files, lines = Counter[str](), Counter[str]()
    for module in house.of(*ENGINE):
        files[room(module.path)] += 1
        lines[room(module.path)] += module.lines
    return {name: (files[name], lines[name]) for name in sorted(files)}


def native(root: Path) -> tuple[int, int]:
    """Files and lines of C."""
    files = [path for tree in ENGINE for path in (root / tree).rglob("*") if path.suffix in (".c", ".h")]
    return len(files), sum(len(path.read_text("utf-8").splitlines()) for path in files)


# ------------------------------------------------------------------------------------------------ plugins


def exported(house: House, name: str) -> dict[str, str] | None:
    """Where each name of a front comes from, by name; None for a module that has something of its own.

    A front is an `__init__` of nothing but imports, assignments of constants and a module `__getattr__`. What that one loads when
    it is asked for is read from a table of names and modules: `{"Name": ".module"}`.
    """
    module = house.modules.get(name)
    if module is None or module.path.name != "__init__.py" or not module.imports:
        return None
    for node in module.tree.body:
        doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        if not (doc or lazy or isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.If)):
            return None
    sources = {one: source for source, names in module.imports for one in names}
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            table = zip(node.value.keys, node.value.values, strict=True)
            pairs = [
                (k.value, v.value) for k, v in table if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)
            ]
            sources |= {str(key): f"{name}.{str(value).removeprefix(f'{name}.').lstrip('.')}" for key, value in pairs}
    return {one: source for one, source in sources.items() if source in house.modules}


def origins(house: House, name: str, taken: tuple[str, ...]) -> set[str]:
    """The modules of core that an import stands for: through a front, those in which the names are made."""
    if name != CORE and not name.startswith(f"{CORE}."):
        return set()
    sources = exported(house, name)
    if sources is None:
        return {name} if name in house.modules else set()
    wanted = taken or tuple(sources)
    return {origin for one in wanted for origin in (origins(house, sources[one], (one,)) if one in sources else {name})}


def drafting_half(house: House, plugin: str) -> set[str]:
    """The modules of a plugin that draft: reached from its own without those of training.

    A module is of training if it imports `core.train`; what only such modules reach is training's too. The plugin's first
    module is always of the drafting half.
    """
    own = {name for name in house.modules if name == plugin or name.startswith(f"{plugin}.")}
    trains = {name for name in own if any(to.startswith(f"{CORE}.train") for to, _ in house.modules[name].imports)}
    reached, todo = set[str](), [plugin]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [to for to, _ in house.modules[name].imports if to in own - trains]
    return reached


def plugins(house: House) -> dict[str, list[str]]:
    """For each method, the modules of core that its drafting half takes names from, without the trainer."""
    found = {}
    for plugin in sorted({".".join(m.name.split(".")[:3]) for m in house.of("plugins") if m.name != DRAFTERS}):
        taken = {
            origin
            for name in drafting_half(house, plugin)
            for to, names in house.modules[name].imports
            for origin in origins(house, to, names)
        }
        found[plugin.rpartition(".")[2]] = sorted(one for one in taken if not one.startswith(f"{CORE}.train"))
    return found


# ------------------------------------------------------------------------------------------------ the table


def measured(root: Path) -> dict[str, Any]:
    """What a few rounds of a small model say: see house_round.py."""
    path = os.pathsep.join(str(root / tree) for tree in TREES)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "house_round.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"No rounds could be run in {root}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def figures(root: Path, *, calls: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """One column of the table, and the names behind its figures."""
    house = House(root)
    column: dict[str, Any] = {}
    for tree in ENGINE:
        column[f"{tree}: Python files / lines"] = _pair(len(own := house.of(tree)), sum(module.lines for module in own))
    both, graph = house.of(*ENGINE), house.graph(*ENGINE)
    column["core and plugins: Python lines"] = sum(module.lines for module in both)
    column["core and plugins: C files / lines"] = _pair(*native(root))
    private, once = private_functions(both)
    column["private functions"] = private
    column["… called once in their file"] = len(once)
    files, long = too_long(house.of("core", "plugins", "app"))
    column[f"files over {FILE_LINES} lines"], column[f"functions over {FUNCTION_LINES} lines"] = len(files), len(long)
    modules, folders = cycles(graph), cycles(house.folders(graph, strict=False))
    column["module cycles (largest)"], column["folder cycles (largest)"] = _cycles(modules), _cycles(folders)
    strict = cycles(house.folders(graph, strict=True))
    column["… with a folder and the one it is in"] = _cycles(strict)
    fullest, count = Counter(module.folder for module in both).most_common(1)[0]
    column["fullest folder"] = f"{count} ({fullest})"
    wraps, outcomes = types(house, DRAFT), types(house, OUTCOME)
    column["value types that hold a draft"], column["… that tell how it went"] = len(wraps), len(outcomes)
    taken = plugins(house)
    column["modules of core for one plugin, at most"] = max(map(len, taken.values()))
    column["modules of core for all plugins"] = len({one for names in taken.values() for one in names})
    for name, ones in taken.items():
        column[f"… {name}"] = len(ones)
    names = {"cycles of modules": modules, "cycles of folders": folders, "too long": files + long}
    names |= {"called once": once, "modules of core by plugin": taken, "types": [wraps, outcomes]}
    if calls:
        run = measured(root)
        column |= run["figures"]
        names |= run["names"]
    for name, (count, lines) in rooms(house).items():
        column[f"room {name}: files / lines"] = _pair(count, lines)
    return column, names


def _pair(files: int, lines: int) -> str:
    return f"{files} / {lines:,}"


def _cycles(found: list[list[str]]) -> str:
    return f"{len(found)} ({len(found[0])})" if found else "0"


def table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown, a line for each figure in the order of the first column that has it; rooms come last."""
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    rows.sort(key=lambda row: row.startswith("room "))
    lines = [["", *columns], ["---"] * (1 + len(columns))]
    for row in rows:
        values = [column.get(row, "") for column in columns.values()]
        lines.append([row, *(f"{value:,}" if isinstance(value, int) else str(value) for value in values)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", help="a checkout; may be given several times")
    parser.add_argument("--calls", action="store_true", help="also run a small model and count what a round does")
    parser.add_argument("--names", action="store_true", help="list what the figures count")
    parser.add_argument("--json", type=Path, help="write figures and names to this file too")
    options = parser.parse_args()
    roots = [root.resolve() for root in options.root or [HERE.parent]]
    titles = [root.name if len({r.name for r in roots}) == len(roots) else str(root) for root in roots]
    columns, lists = {}, {}
    for title, root in zip(titles, roots, strict=True):
        columns[title], lists[title] = figures(root, calls=options.calls)
    print(table(columns))
    if options.names:
        print("\n" + json.dumps(lists, indent=1, ensure_ascii=False))
    if options.json:
        options.json.write_text(json.dumps({"figures": columns, "names": lists}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
