"""What the conformance kit is built on: answers with a drafter and without, compared; rounds driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from outrider.core.base.errors import OutriderError
from outrider.core.base.protocol import DrafterChoice, Notice, Progress, Report, Step
from outrider.core.decode.rounds import Rounds
from outrider.core.drafting.active import GuardedDrafter
from outrider.core.drafting.contract import Committed as Fact
from outrider.core.drafting.contract import Context, DeviceContext, Draft, Drafter
from outrider.core.model.capture import Capture
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.policy import Policy
from outrider.core.sampling.noise import Noise, gumbel
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.answer import Answer, AnswerRequest
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.pool import PooledDrafter, Wanted

GREEDY = Settings(temperature=0)
ANSWER = 32  # tokens
CHAIN = 6  # draft tokens of a chain
TIE = {torch.float32: 1e-4, torch.float64: 1e-9}  # of the largest logit: two tokens that near are as good as equal
TIE_HALF = 2e-2  # with half the bits
WORSE, BY = 0.75, 3  # where drafts differ from a fresh drafter's: share of its accepted tokens, and tokens less
NOBODY = torch.empty(0, dtype=torch.int64)  # path of a step without a draft

Make = Callable[[TargetModel], Drafter]


class Nothing(Exception):
    """There was nothing to judge."""


class Broken(Exception):
    """The drafter broke the contract."""


@dataclass(frozen=True)
class Ask:
    """An answer to make. `switches`: passes at which the drafter is taken up and left in turn; none: it drafts throughout."""

    ids: tuple[int, ...]
    settings: Settings = GREEDY
    seed: int = 1
    eos: int | None = None
    limit: int | None = ANSWER
    switches: tuple[int, ...] = ()

    @property
    def choices(self) -> dict[int, str]:
        """Who drafts from which pass on."""
        return {turn: "none" if number % 2 else "drafter" for number, turn in enumerate(self.switches)}


@dataclass(slots=True)
class Run:
    """An answer that was made, and what was drafted."""

    report: Report
    drafts: list[list[int]]  # of each round, in the host form
    steps: list[Step]  # the first is the prefill, then one for each round

    @property
    def ids(self) -> list[int]:
        """Its tokens."""
        return self.report.token_ids

    @property
    def drafted(self) -> tuple[list[list[int]], int]:
        """Its drafts and how many of their tokens were accepted."""
        return self.drafts, self.report.accepted


class Watch:
    """A drafter that records its drafts, and asks for each of them twice if `twice`."""

    def __init__(self, inner: Drafter, *, twice: bool = False, device: bool = False) -> None:
        self.inner, self.twice, self.device = inner, twice, device
        self.needs, self.shape = inner.needs, inner.shape
        self.drafts: list[list[int]] = []
        self.problem = ""
        self.reset, self.advance = inner.reset, inner.advance
        self.rewind, self.close, self.fork = inner.rewind, inner.close, inner.fork

    def propose(self, context: Context) -> Draft | None:
        """The inner drafter's."""
        before = list(context.tokens)
        draft = self.inner.propose(context)
        if self.twice and tokens_of(draft) != tokens_of(self.inner.propose(context)):
            self.problem = "Asked twice in a row it gave two different drafts: the first call left a trace."
        if list(context.tokens) != before:
            self.problem = "It changed the tokens of the conversation."
        self.drafts.append(tokens_of(draft))
        return draft

    def propose_device(self, context: DeviceContext) -> Draft | None:
        """As `DeviceDrafter`: the inner drafter's."""
        return self.inner.propose_device(context)  # type: ignore[attr-defined]


class _Control:
    """An answer that switches at the passes named."""

    def __init__(self, choices: dict[int, DrafterChoice]) -> None:
        self._choices, self._asked = choices, 0

    def cancelled(self) -> bool:
        """Never."""
        return False

    def switched(self) -> DrafterChoice | None:
        """The switch of this pass."""
        self._asked += 1
        return self._choices.get(self._asked)

    def switch_done(self, name: str, error: OutriderError | None) -> None:
        """Nobody waits for it."""


class _Pieces:
    """A detokeniser: the text does not matter here."""

    def push(self, token: int) -> str:
        """One letter for each token."""
        return "."

    def flush(self) -> str:
        """Nothing is held."""
        return ""


class WatchedDrafter:
    """A drafter under guard, watched. It begins anew, unless it is to `keep` what it knows."""

    def __init__(
        self, inner: Drafter, name: str, *, trusted: bool, twice: bool = False, device: bool = False, keep: bool = False
    ) -> None:
        self._notes: list[str] = []
        self.watch = Watch(inner, twice=twice, device=device)
        self.drafter = PooledDrafter(name, self.watch, trusted, self._notes.append)
        if not keep:
            self.drafter.reset()

    @property
    def width(self) -> int:
        """Nodes of a draft: a whole tree, or a chain of a usual length."""
        shape = self.drafter.shape
        return min(shape.nodes if shape.nodes > shape.depth else min(shape.nodes, CHAIN), MAX_DRAFT_ROWS - 1)

    def judge(self) -> None:
        """Raises Broken if it failed, or did what it must not."""
        if self.drafter.failed:
            raise Broken(self._notes[0].split(" It is switched off;")[0])
        if self.watch.problem:
            raise Broken(self.watch.problem)

    def close(self) -> None:
        """Close the drafter, if a failure has not done so."""
        if not self.drafter.failed:
            self.drafter.close()


def name_of(make: Make, drafter: Drafter) -> str:
    """What its author knows a drafter by: the name that `make` has for it, or that of its class."""
    name = getattr(make, "drafter", None)
    return name if isinstance(name, str) else type(drafter).__name__


class Rig:
    """A target of its own that shares the weights of another, and the answers that are made on it."""

    def __init__(self, lender: TargetModel, context: int, capture: Capture | None = None) -> None:
        """`capture`: run rounds as captured work, the device form of drafters included."""
        self.target = TargetModel(lender.decoder, lender.info, min(lender.context, context), capture)
        self._plain: dict[Ask, Run] = {}

    def new_cache(self) -> ChatCache:
        """A new conversation; the one before is over."""
        self.target.rewind(0)
        return ChatCache(self.target)

    def run(self, ask: Ask, subject: WatchedDrafter | None, cache: ChatCache | None = None) -> Run:
        """One answer with the drafter, or plain; in a conversation that goes on, or in a new one. Raises Broken."""
        cache = cache or self.new_cache()
        tokens = None if subject is None else subject.width
        if subject is not None:
            cache.drafters.put(Wanted("drafter"), subject.drafter)
        choices = {name: DrafterChoice(name=name, tokens=tokens) for name in ("drafter", "none")}
        first = "none" if subject is None or ask.switches else "drafter"
        order = AnswerRequest(
            request=0,
            model="",
            ids=list(ask.ids),
            settings=ask.settings,
            seed=ask.seed,
            rule="match",
            drafter=choices[first],
            eos=frozenset(() if ask.eos is None else (ask.eos,)),
            pieces=_Pieces(),
            decode=lambda some: "",
            limit=ask.limit,
        )
        table = {"drafter": subject and subject.drafter, "none": None}
        before = len(subject.watch.drafts) if subject is not None else 0
        steps: list[Step] = []

        def listen(event: Step | Progress | Notice) -> None:
            if isinstance(event, Step):
                steps.append(event)

        answer = Answer(order, cache, Policy(), lambda choice: table[choice.name], listen)
        report = answer.run(_Control({turn: choices[name] for turn, name in ask.choices.items()}))
        if subject is None:
            return Run(report, [], steps)
        subject.judge()
        return Run(report, subject.watch.drafts[before:], steps)

    def plain(self, ask: Ask) -> Run:
        """The answer without a drafter."""
        bare = replace(ask, switches=())
        if bare not in self._plain:
            self._plain[bare] = self.run(bare, None)
        return self._plain[bare]

    def same(self, ask: Ask, got: Run) -> None:
        """Raises Broken if the text is not that of plain decoding, unless two tokens were as good as equal where they part."""
        ours, theirs = got.ids, self.plain(ask).ids
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if at is None:
            if len(ours) != len(theirs):
                raise Broken(f"The answer has {len(ours)} tokens, without the drafter it has {len(theirs)}.")
        elif not self._tied(ask, theirs[:at], ours[at], theirs[at]):
            raise Broken(f"Token {at + 1} of the answer is {ours[at]}, without the drafter it is {theirs[at]}.")

    def _tied(self, ask: Ask, answer: list[int], a: int, b: int) -> bool:
        """Whether the choice between two tokens after an answer depends on rounding."""
        before = [*ask.ids, *answer]
        fresh = TargetModel(self.target.decoder, self.target.info, len(before) + 1)
        row = fresh.forward(before, last=True).logits[0].float()
        allowed = TIE.get(self.target.dtype, TIE_HALF) * float(row[row.isfinite()].abs().max())
        if ask.settings.temperature == 0:
            return abs(float(row[a] - row[b])) < allowed
        row = row / ask.settings.temperature + gumbel(
            Noise(ask.seed).uniform_all("target", len(before), row.shape[0], row.device)
        )
        return abs(float(row[a] - row[b])) < allowed / ask.settings.temperature

    # ------------------------------------------------------------------ by hand

    def prefill(self, drafter: GuardedDrafter, ids: Sequence[int], root: int | None = None) -> list[int]:
        """A prompt and the token after it (None: the likeliest), given as the engine gives them; the ids."""
        self.target.rewind(0)
        result = self.target.forward(ids, last=True, states=drafter.needs.hidden)
        self.target.commit(len(ids))
        hidden = result.hidden
        root = int(result.logits[0].argmax()) if root is None else root
        drafter.advance(Fact(0, torch.tensor(ids), NOBODY, None if hidden is None else hidden[:-1]))
        drafter.advance(Fact(len(ids), torch.tensor([root]), NOBODY, None if hidden is None else hidden[-1:]))
        return [*ids, root]

    def extend(self, drafter: GuardedDrafter, tokens: list[int], more: list[int]) -> None:
        """More tokens, with the states that produced them."""
        result = self.target.forward([tokens[-1], *more[:-1]], states=drafter.needs.hidden)
        self.target.commit(len(tokens) + len(more) - 1)
        drafter.advance(Fact(len(tokens), torch.tensor(more), NOBODY, result.hidden))

    def back(self, ids: Sequence[int]) -> None:
        """The target as it was after a prompt."""
        length = self.target.rewind(len(ids) - 1)
        self.target.forward(ids[length:], last=True)
        self.target.commit(len(ids))

    def context(self, drafter: GuardedDrafter, tokens: list[int], nodes: int) -> Context:
        """What the engine would show."""
        return Rounds(self.target, tokens, Sampler(GREEDY, Noise(1), tokens)).draft_context(drafter, nodes)

    def draft(self, drafter: GuardedDrafter, tokens: list[int], nodes: int) -> Draft | None:
        """One guarded draft."""
        return drafter.propose(self.context(drafter, tokens, nodes), self.target.vocab)


def as_good(ours: tuple[list[list[int]], int], fresh: tuple[list[list[int]], int], after: str) -> str:
    """How drafts and their accepted tokens compare with a fresh drafter's on the same text. Raises Broken if they are worse."""
    if ours[0] == fresh[0]:
        return "its drafts are those of a fresh one"
    if ours[1] < min(WORSE * fresh[1], fresh[1] - BY):
        raise Broken(f"After {after} {ours[1]} of its draft tokens are right, of a fresh drafter's {fresh[1]}.")
    return f"{ours[1]} of its draft tokens are right, of a fresh one's {fresh[1]}"


def right(draft: Draft | None, text: Sequence[int]) -> int:
    """How many nodes of a draft the text goes through."""
    if draft is None:
        return 0
    node, found = -1, 0
    for token in text:
        child = next((child for child in draft.children[node + 1] if draft.ids[child] == token), None)
        if child is None:
            break
        node, found = child, found + 1
    return found


def tokens_of(draft: Draft | None) -> list[int]:
    """The tokens of a draft, none for none."""
    return [] if draft is None else draft.ids
