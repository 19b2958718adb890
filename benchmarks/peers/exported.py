"""What `outrider train export --full` writes, read by the implementations that the formats come from: are the logits equal?

    PYTHONPATH=tests/support python benchmarks/peers/exported.py --references FOLDER

FOLDER holds checkouts of the repositories SafeAILab/EAGLE as `EAGLE` and FasterDecoding/Medusa as `Medusa`. They want
transformers 4.53; speculators 0.9.0, which is imported as it is installed, wants transformers 5 and no torchvision of another
torch. So there are two environments, with Outrider in both: `--only eagle,medusa` in one and `--only speculators` in the other.

A toy target, whose weights 16 bits hold, has drafters trained for a few steps; these are rounded as the file rounds them and
written whole. Each line compares our plugin on those files with a reference on them, or with the trainee that wrote them, all in
fp32; EAGLE and Medusa run with their own pass of the target. Exit code 1 if anything differs by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pupils
import torch
import toys
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.drafting import Committed, Context, Drafter, Stream, registry
from outrider.core.train.answers import Kept
from outrider.core.train.loop import Loop, Schedule
from outrider.core.train.run_settings import recipe_of
from outrider.core.train.states import States
from outrider.core.train.teacher import Teacher

LAYERS = 8  # of the target: with fewer, two of EAGLE-3's three states are one
DRAFT, UNROLLED = 5, 3  # tokens of a chain; steps that speculators and the trainee unroll
CLOSE = 2e-6  # of the largest logit: what rounding may make
ROOTS = (8, 15, 22, 29)  # where drafts begin in a text, of those that are given one
NONE = torch.empty(0, dtype=torch.int64)
CHECKOUTS = {"EAGLE": "SafeAILab/EAGLE", "Medusa": "FasterDecoding/Medusa"}


class Case(NamedTuple):
    """A drafter to be trained."""

    method: str
    options: dict[str, Any]
    container: str


BLOCK = {"states": 3, "layers": 2, "block": 5, "words": 90, "every": 2}
CASES = {
    "EAGLE-3": Case("eagle", {"words": 90}, "EAGLE, 90 words"),
    "EAGLE-3 of all words": Case("eagle", {"words": 0, "head": True}, "EAGLE, own rows"),
    "EAGLE-1": Case("eagle", {"version": 1}, "EAGLE"),
    "DFlash": Case("dflash", BLOCK, "speculators, 90 words"),
    "DFlash from the anchor": Case("dflash", BLOCK | {"from_anchor": True, "head": True}, "speculators, own rows"),
    "DFlash of all words": Case("dflash", BLOCK | {"words": 0}, "speculators"),
    "DSpark": Case("dflash", BLOCK | {"kind": "dspark", "rank": 6}, "speculators, 90 words"),
    "DSpark of all words": Case("dflash", BLOCK | {"kind": "dspark", "rank": 6, "words": 0}, "speculators"),
    "Medusa": Case("medusa", {"heads": 5, "words": 0}, "heads alone"),
    "Medusa's own rows": Case("medusa", {"heads": 5, "words": 0, "head": True}, "heads alone"),
    "Medusa-2": Case("medusa", {"heads": 3, "words": 0, "joint": True}, "whole model"),
}


class Said(NamedTuple):
    """What a reference made of one root."""

    ids: list[int]  # up to the root
    logits: Tensor  # [n, Vd]
    tokens: list[int]  # [n] the best ones, in target ids
    along: Sequence[int] | None = None  # tokens that were taken instead of these; None: these
    sure: Sequence[float] = ()  # what a confidence head says of them


class Missing(Exception):
    """A reference that is not here."""


class Made(NamedTuple):
    """A trained drafter on disk, and the target that it is for."""

    name: str
    case: Case
    trainee: Any
    teacher: Teacher
    folder: Path
    texts: list[Kept]
    words: Tensor  # [Vd] that its head knows

    @property
    def target(self) -> str:
        """Where the target lies."""
        return self.teacher.info.path


# ------------------------------------------------------------------ what is compared


def target_in(folder: Path) -> Teacher:
    """A toy with weights that 16 bits hold, and a rope and an eps that are nobody's defaults."""
    toys.checkpoint(folder, layers=LAYERS)
    tensors = {name: part.bfloat16().float() for name, part in load_file(folder / "model.safetensors").items()}
    tensors["lm_head.weight"] *= 4.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "rope_theta": 300000.0, "rms_norm_eps": 1e-3}
    (folder / "config.json").write_text(json.dumps(config))
    return pupils.from_disk(folder)


def made(name: str, teacher: Teacher, texts: list[Kept], scratch: Path, steps: int) -> Made:
    """Trained for a few steps, rounded, and written whole."""
    case, folder = CASES[name], scratch / name.replace(" ", "-")
    folder.mkdir()
    recipe = recipe_of(case.method)
    counts = pupils.counts(texts, teacher.info.vocab)
    trainee: Any = recipe.trainee(teacher, recipe.settings(**case.options), counts, torch.Generator().manual_seed(3))
    states = States(teacher, texts, trainee.states, None)
    loop = Loop(trainee, states, Schedule(steps=steps, tokens=256, rate=1e-2), folder)
    loop.run(lambda step, figures: None, lambda: False)
    luck = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for part in trainee.parameters():  # norms and confidences hardly move in so few steps
            noise = torch.randn(part.shape, generator=luck)
            part.copy_((part + (0.3 if part.ndim == 1 else 0.2 / part.shape[-1] ** 0.5) * noise).bfloat16())
    trainee.save(folder / "out", whole=True)
    if case.options.get("joint"):
        teacher = pupils.from_disk(folder / "out")
    words = torch.arange(teacher.info.vocab) if case.method == "medusa" else trainee.head.words
    words = torch.arange(teacher.info.vocab) if case.options.get("version") == 1 else words
    return Made(name, case, trainee, teacher, folder / "out", texts, words)


def drafter_of(one: Made) -> Drafter:
    """Our plugin on the folder, or on the heads that the model has of its own."""
    options: dict[str, object] = {"tree": "chain"} if one.case.method == "eagle" else {}
    if not one.case.options.get("joint"):
        options["weights"] = str(one.folder)
    return registry.build(one.case.method, one.teacher.target, options)


class Drafted(NamedTuple):
    """What our plugin made of one root."""

    logits: Tensor  # [n, V]
    tokens: list[int]  # [n] the best ones
    sure: list[float]


def drafted(drafter: Any, one: Made, said: Said) -> Drafted:
    """Our plugin behind the same tokens, along the same path."""
    count, rows = len(said.tokens), list[Tensor]()
    states = one.teacher.read(said.ids, drafter.needs.hidden)
    drafter.reset()
    drafter.advance(Committed(0, torch.tensor(said.ids), NONE, states[:-1]))
    if one.case.method == "medusa":  # trees have no use for all heads
        logits = drafter._speaker.logits(drafter._memory.state(len(said.ids)), count).clone()
        return Drafted(logits, logits.argmax(-1).tolist(), [])

    def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
        rows.extend(logits.clone())
        if said.along is not None and len(path) < len(said.along):
            return torch.tensor([said.along[len(path)]])
        return logits.argmax(-1)

    def law(logits: Tensor, path: Sequence[int]) -> Tensor:
        raise AssertionError("no law was asked for")

    def rng(position: int) -> Stream:
        raise AssertionError("nothing is drawn")

    draft = drafter.propose(Context(said.ids, count, False, sample, law, rng))
    assert draft is not None
    held = [] if draft.confidence is None else draft.confidence.tolist()
    return Drafted(torch.stack(rows), [int(row.argmax()) for row in rows], held)


@dataclass
class Line:
    """Of the table: one container in one reference."""

    one: Made
    reference: str
    apart: float = 0.0
    largest: float = 0.0
    rows: int = 0
    best: int = 0  # rows with the same best token
    roots: int = 0
    alike: int = 0  # roots with the same tokens

    def take(self, said: Said, ours: Drafted) -> None:
        """One root."""
        assert torch.isfinite(said.logits).all(), f"{self.one.name} in {self.reference}: logits are no numbers"
        logits = ours.logits[:, self.one.words]
        assert logits.shape == said.logits.shape, (self.one.name, logits.shape, said.logits.shape)
        self.apart = max(self.apart, float((logits - said.logits).abs().max()))
        self.largest = max(self.largest, float(said.logits.abs().max()))
        if said.sure:
            gaps = [abs(mine - theirs) for mine, theirs in zip(ours.sure, said.sure, strict=True)]
            self.apart = max(self.apart, *gaps)
        self.rows += len(said.tokens)
        self.best += int((logits.argmax(-1) == said.logits.argmax(-1)).sum())
        self.roots += 1
        self.alike += ours.tokens == said.tokens

    @property
    def good(self) -> bool:
        """Whether nothing but rounding lies between the two."""
        return self.roots > 0 and self.apart <= CLOSE * self.largest and self.alike == self.roots

    def __str__(self) -> str:
        what = f"{self.one.name:23} {self.one.case.container:22} {self.reference:18}"
        shares = f"{self.best}/{self.rows:<5} {self.alike}/{self.roots:<4}"
        return f"{what} {self.apart:9.1e} {self.largest:8.2f}  {shares:14} {'equal' if self.good else 'DIFFERENT'}"


# ------------------------------------------------------------------ SafeAILab/EAGLE


class Stub:
    """In place of a tokenizer, which the references load and hardly use."""

    eos_token_id = -7

    @classmethod
    def from_pretrained(cls, *args: object, **more: object) -> Stub:
        """None is read."""
        return cls()


@contextmanager
def within(references: Path | None, name: str) -> Iterator[None]:
    """A checkout on the import path. Raises Missing."""
    folder, has = (references or Path()) / name, find_spec("transformers") and version("transformers")
    if references is None or not folder.is_dir():
        raise Missing(f"fetch the repository {CHECKOUTS[name]} into a folder {name} of --references")
    if not (has or "").startswith("4."):
        raise Missing(f"install transformers 4.53, here is {has or 'none'}")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def by_eagle(one: Made, references: Path | None) -> Iterator[Said]:
    """Chains of EAGLE's own decoding loop, with its own pass of the target."""
    with within(references, "EAGLE"):
        import eagle.model.ea_model as module  # pyright: ignore[reportMissingImports]

    module.AutoTokenizer = Stub
    third = one.case.options.get("version") != 1
    model = module.EaModel.from_pretrained(
        use_eagle3=third,
        base_model_path=one.target,
        ea_model_path=str(one.folder),
        torch_dtype=torch.float32,
        total_token=DRAFT + 1,
        depth=DRAFT - 1,
        top_k=1,
    ).eval()
    heard: list[tuple[list[int], list[Tensor], list[int]]] = []
    generate = model.ea_layer.topK_genrate

    def told(hidden_states: Tensor, input_ids: Tensor, head: Any, logits_processor: Any) -> Any:
        heard.append((input_ids[0].tolist(), [], []))
        answer = generate(hidden_states, input_ids, head, logits_processor)
        heard[-1][2].extend(answer[0][0, 1:].tolist())
        return answer

    def row(_: object, given: tuple[Tensor, ...], logits: Tensor) -> None:
        if heard and given[0].ndim == 2:  # the target's own rows come in batches
            heard[-1][1].append(logits[0].detach().clone())

    model.ea_layer.topK_genrate = told
    head = model.ea_layer.lm_head if third else model.base_model.lm_head
    head.register_forward_hook(row)
    for text in one.texts[:3]:
        model.eagenerate(torch.tensor([text.ids[: text.first]]), max_new_tokens=24, max_length=200)
        model.ea_layer.reset_kv()
    for ids, rows, tokens in heard:
        yield Said(ids, torch.stack(rows), tokens)


# ------------------------------------------------------------------ FasterDecoding/Medusa


def by_medusa(one: Made, references: Path | None) -> Iterator[Said]:
    """All heads of Medusa's own model behind every token of some texts, with its own pass of the target."""
    with within(references, "Medusa"):
        import transformers.utils  # pyright: ignore[reportMissingImports]

        transformers.utils.is_flash_attn_available = lambda: False  # type: ignore[attr-defined]  # a name of its time
        import medusa.model.medusa_model as module  # pyright: ignore[reportMissingImports]

    module.AutoTokenizer = Stub
    if not one.case.options.get("joint"):  # its loader wants a path, or the name of a repository
        config = json.loads((one.folder / "config.json").read_text())
        (one.folder / "config.json").write_text(json.dumps(config | {"base_model_name_or_path": one.target}))
    model = module.MedusaModel.from_pretrained(str(one.folder), torch_dtype=torch.float32).eval()
    for text in one.texts[:3]:
        heads, *_ = model(torch.tensor([text.ids[:-1]]), output_orig=True, medusa_forward=True)  # [heads, 1, T, V]
        for root in range(1, len(text.ids)):
            logits = heads[:, 0, root - 1].clone()
            yield Said(text.ids[: root + 1], logits, logits.argmax(-1).tolist())


# ------------------------------------------------------------------ speculators


def speculators() -> None:
    """Raises Missing."""
    try:
        import speculators.model  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError as error:
        raise Missing(f"install speculators 0.9.0; it cannot be imported: {error}") from error


def opened(one: Made, folder: Path) -> Any:
    """A container as speculators reads it, with the weights of the target that it leaves out."""
    from speculators import SpeculatorModel, SpeculatorModelConfig  # pyright: ignore[reportMissingImports]

    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.speculators_config.verifier.name_or_path = one.target
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(str(folder), config=config, dtype=torch.float32).float().eval()
    assert model._attn_impl == "eager"
    return model


def by_speculators(one: Made, references: Path | None) -> Iterator[Said]:
    """Blocks at some anchors of its training pass, each slot behind what was drafted before it."""
    speculators()
    model = opened(one, one.folder)
    first = 0 if model.config.sample_from_anchor else 1
    for text in one.texts[:3]:
        ids = torch.tensor([text.ids])
        states = one.teacher.read(text.ids, (*model.target_layer_ids, one.teacher.info.layers))[None]
        wanted = torch.zeros_like(ids)
        wanted[:, list(ROOTS)] = 1
        nothing = torch.zeros_like(ids)
        hidden, logits, *_ = model._backbone_forward(
            states[:, :, :-1].flatten(2), ids, wanted, states[:, :, -1], nothing, max_anchors=len(ROOTS)
        )
        hidden, logits = (x[0].unflatten(0, (len(ROOTS), -1))[:, first:] for x in (hidden, logits))
        for number, root in enumerate(ROOTS):
            yield walked(model, text.ids[: root + 1], hidden[number], logits[number])


def walked(model: Any, ids: list[int], hidden: Tensor, logits: Tensor) -> Said:
    """The slots [n, d] of one block, one behind the other, where what they say hangs on that."""
    path, rows, sure = [ids[-1]], [], []
    markov, confidence = getattr(model, "markov_head", None), getattr(model, "confidence_head", None)
    for slot, row in enumerate(logits):
        if markov is not None:
            before, here = torch.tensor([[path[-1]]]), hidden[None, slot : slot + 1]
            embedded = markov.prev_embeddings(before)
            row = row + markov.block_bias(prev_token_ids=before, hidden_states=here, prev_emb=embedded)[0, 0]
            if confidence is not None:
                sure.append(float(confidence(torch.cat((here, embedded), -1)).sigmoid()))
        rows.append(row)
        best = int(row.argmax())
        path.append(best if model.d2t is None else best + int(model.d2t[best]))
    return Said(ids, torch.stack(rows), path[1:], sure=sure)


def by_conversion(one: Made, references: Path | None) -> Iterator[Said]:
    """EAGLE-3 as speculators converts it, unrolled by its training pass along the text."""
    speculators()
    from speculators.convert.entrypoints import convert_model  # pyright: ignore[reportMissingImports]

    converted = one.folder.with_name("converted")
    convert_model(str(one.folder), one.target, "eagle3", str(converted))
    model, rows = opened(one, converted), list[Tensor]()
    model.lm_head.register_forward_hook(lambda _, given, logits: rows.append(logits[0].clone()))
    assert tuple(model.target_layer_ids) == tuple(one.trainee.states[:3])
    for text in one.texts[:3]:
        rows.clear()
        ids = torch.tensor([text.ids[1:]])
        states = one.teacher.read(text.ids, model.target_layer_ids)[None, :-1].flatten(2)
        model(hidden_states=states, input_ids=ids, document_ids=torch.zeros_like(ids), ttt_steps=UNROLLED)
        for root in ROOTS:
            logits = torch.stack([step[root - 1] for step in rows])
            best = logits.argmax(-1)
            best = best if model.d2t is None else best + model.d2t[best]
            yield Said(text.ids[: root + 1], logits, best.tolist(), along=text.ids[root + 1 : root + UNROLLED])


def by_trainee(one: Made, references: Path | None) -> Iterator[Said]:
    """The trainee itself, along the texts."""
    say = {"medusa": _medusa_said, "dflash": _block_said, "eagle": _eagle_said}[one.case.method]
    for text in one.texts[:2]:
        batch = pupils.batch(one.teacher, [text], one.trainee.states)
        for root, logits, along in say(one, batch, text.ids):
            tokens = one.words[logits.argmax(-1)].tolist()
            yield Said(text.ids[: root + 1], logits.detach(), tokens, along=along)


def _medusa_said(one: Made, batch: Any, ids: list[int]) -> Iterator[tuple[int, Tensor, None]]:
    z = one.teacher.norm(batch.states[:, 0])
    for root in ROOTS:
        heads = [one.trainee._logits(head, z[root - 1 : root])[0] for head in range(len(one.trainee.blocks))]
        yield root, torch.stack(heads), None


def _block_said(one: Made, batch: Any, ids: list[int]) -> Iterator[tuple[int, Tensor, Sequence[int]]]:
    trainee = one.trainee
    first = 0 if trainee.from_anchor else 1
    slots = trainee.slots(batch, batch.texts[0], torch.tensor(ROOTS))[:, first:]  # [A, n, d]
    count, markov = slots.shape[1], trainee.markov_head
    for number, root in enumerate(ROOTS):
        logits = trainee.head(slots[number])
        if markov is not None:
            logits = logits + markov.markov_w2(markov.markov_w1(torch.tensor(ids[root : root + count])))
        yield root, logits, ids[root + 1 : root + count]


def _eagle_said(one: Made, batch: Any, ids: list[int]) -> Iterator[tuple[int, Tensor, Sequence[int]]]:
    trainee = one.trainee
    if one.case.options.get("version") == 1:
        made = trainee.features(batch, one.teacher.norm(batch.states[:, 0]))
        logits = one.teacher.target.head(made.detach())
        yield from ((root, logits[root - 1 : root], ids[root + 1 : root + 1]) for root in ROOTS)
        return
    steps: list[Tensor] = []
    hook = trainee.norm.register_forward_hook(lambda _, given, x: steps.append(trainee.head(x.detach())))
    trainee.learn(batch, torch.Generator())
    hook.remove()
    start = max(batch.texts[0].answer - 1, 1)  # the root of the first row that is asked
    for root in (root for root in ROOTS if root >= start):
        yield root, torch.stack([step[root - start] for step in steps]), ids[root + 1 : root + len(steps)]


Says = Callable[[Made, Path | None], Iterator[Said]]
READERS: dict[str, tuple[tuple[str, Says], ...]] = {  # by what a case's name begins with
    "EAGLE-3": (("SafeAILab/EAGLE", by_eagle), ("speculators", by_conversion)),
    "EAGLE-1": (("SafeAILab/EAGLE", by_eagle),),
    "D": (("speculators", by_speculators),),
    "Medusa": (("Medusa", by_medusa),),
}


def readers(name: str, only: Sequence[str]) -> list[tuple[str, Says]]:
    """Who reads a case, the trainee first."""
    found = next(some for start, some in READERS.items() if name.startswith(start))
    chosen = [(who, says) for who, says in found if not only or who.lower().rpartition("/")[2] in only]
    joint = CASES[name].options.get("joint")  # the model that it writes is not the one that it was made on
    return [*([("the trainee", by_trainee)] if chosen and not joint else []), *chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=Path, help="folder with the checkouts EAGLE and Medusa")
    parser.add_argument("--only", default="", help="of eagle, medusa, speculators; with commas between")
    parser.add_argument("--steps", type=int, default=12, help="of training")
    options = parser.parse_args()
    only = [part for part in options.only.split(",") if part]
    torch.set_num_threads(1)
    failed = False
    print(f"{'method':23} {'container':22} {'read by':18} {'apart':>9} {'largest':>8}  best    drafts")
    with tempfile.TemporaryDirectory() as scratch:
        teacher = target_in(Path(scratch) / "target")
        texts = pupils.answers(teacher, 12, 40)
        for name in CASES:
            chosen = readers(name, only)
            if not chosen:
                continue
            one = made(name, teacher, texts, Path(scratch), options.steps)
            drafter = drafter_of(one)
            for who, says in chosen:
                line = Line(one, who)
                try:
                    with torch.no_grad() if says is not by_trainee else torch.enable_grad():
                        for said in says(one, options.references):
                            line.take(said, drafted(drafter, one, said))
                except Missing as error:
                    print(f"{name:23} {one.case.container:22} {who:18} not compared: {error}", flush=True)
                    continue
                print(line, flush=True)
                failed |= not line.good
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
