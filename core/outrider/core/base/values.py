"""Values of the protocol: what requests and events are made of. All of them are found in `protocol`."""

from __future__ import annotations

import math
import os
from typing import Any, Literal

import msgspec

Kind = Literal["A", "C", "B", "P"]  # accepted draft, correction, bonus, plain
Rule = Literal["match", "rejection", "typical"]  # the last one is lossy
Finish = Literal["stop", "length", "cancelled", "error"]
Limit = Literal["context", "tokens"]  # the context is full, or `max_tokens` is reached
# Where a drafter's weights are.
Where = Literal["", "given", "checkpoint", "trained", "beside", "shipped", "library", "catalogue", "train"]
Phase = Literal["prose", "code", "thinking", "json"]  # what kind of text an answer is in

MOST_DRAFTED = 63  # tokens of a draft: a pass has 64 rows, and the first is the root's
LEAST_CONTEXT = 16  # tokens
MOST_TOKENS = (1 << 31) - 1  # of a context, an answer, or kept by top-k
MOST_SEED = (1 << 63) - 1


def most_threads() -> int:
    """CPU threads that may be asked for: four times as many as there are processors for this process. More are never faster."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 4 * (allowed or 1)


class Message(msgspec.Struct, omit_defaults=True):
    """One turn of a chat. `role` is `system`, `user` or `assistant`; `thinking` is what an assistant thought before it spoke.

    Whether earlier thoughts are shown to the model is for its chat template to decide.
    """

    role: str
    content: str
    thinking: str = ""


class Sampling(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How tokens are drawn. `None` means the model's own default (its generation config), then the value in `filled`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] = []

    def problem(self) -> str | None:
        """One sentence naming the first option that is out of range, or None."""
        ranges = (
            ("temperature", self.temperature, 0.0, 100.0, "0 means greedy, 0.7 is usual"),
            ("top-k", self.top_k, 0, MOST_TOKENS, "0 switches it off"),
            ("min-p", self.min_p, 0.0, 1.0, "0 switches it off"),
            ("repeat-penalty", self.repeat_penalty, 0.01, 100.0, "1 switches it off"),
            ("presence-penalty", self.presence_penalty, -100.0, 100.0, "0 switches it off"),
            ("frequency-penalty", self.frequency_penalty, -100.0, 100.0, "0 switches it off"),
            ("max-tokens", self.max_tokens, 1, MOST_TOKENS, "leave it out for no limit but the context"),
            ("seed", self.seed, 0, MOST_SEED, "leave it out for a fresh one"),
        )
        for name, value, low, high, hint in ranges:
            if value is not None and not low <= value <= high:  # also catches NaN
                return f"--{name} must be from {_written(low)} to {_written(high)}, not {_written(value)} ({hint})."
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            return f"--top-p must be above 0 and at most 1, not {self.top_p:g} (1 switches it off)."
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or not 0 <= token <= MOST_TOKENS:
                return f"--logit-bias {token}={bias:g} is not a token id with a number."
        if any(not s for s in self.stop):
            return "--stop must not be empty."
        return None


def too_large(value: Any) -> int | None:
    """A whole number in a value, its lists and tables that no frame can carry, None if there is none."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return next((found for part in parts if (found := too_large(part)) is not None), None)
    return value if isinstance(value, int) and not -MOST_SEED <= value <= MOST_SEED else None


def _written(number: float) -> str:
    """A whole number with all its digits, any other one in short."""
    return str(number) if isinstance(number, int) else f"{number:g}"


class ModelChoice(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """Which target and how to load it. `model`: a local folder or file, a catalogue name, a hub id, or `starter`."""

    model: str = "starter"
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"  # auto, fp32, bf16, fp16
    quantize: str = "auto"  # auto (as stored), none (expand), int8, int4
    context: int | None = None  # tokens; None = the model's own, bounded by memory
    threads: int | None = None  # CPU threads; None = the engine's choice
    exact: int | None = None  # exact mode, with room for drafts of so many tokens in every pass


class DrafterChoice(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """Who drafts: `auto`, `none` or a method name. `tokens` pins the draft length."""

    name: str = "auto"
    weights: str | None = None
    tokens: int | None = None
    options: dict[str, Any] = {}  # the method's own settings


class Token(msgspec.Struct, omit_defaults=True):
    """One emitted token. `text` may be empty: held bytes go to the token that completes them, markers are shown nowhere."""

    id: int
    text: str
    kind: Kind
    p: float | None = None  # the target's probability of it, if asked for
    thinking: bool = False  # belongs to a thought, not to the answer


class RejectedToken(msgspec.Struct, array_like=True):
    """A proposed token that the target overruled. `parent` is a node index, -1 the root."""

    id: int
    text: str
    depth: int
    parent: int
    p: float | None = None  # the target's probability of it


class Timing(msgspec.Struct):
    """Seconds."""

    load_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0


SURE = 1.96  # standard errors on either side that make an interval of 95 %


class Speedup(msgspec.Struct):
    """Tokens per second against plain passes among the drafted ones: the ratio, its standard error, how many plain passes."""

    value: float
    error: float
    n: int

    @property
    def sure(self) -> bool:
        """Whether it may be told: 1 is not in its 95 % interval."""
        return abs(self.value - 1) > SURE * self.error


class PlainTime(msgspec.Struct):
    """What plain decoding would have taken for the tokens of an answer: seconds, their standard error, how many plain passes."""

    seconds: float
    error: float
    n: int

    def speedup(self, decode_s: float) -> Speedup | None:
        """Against the seconds that it took; None where that is not sure."""
        if decode_s <= 0:
            return None
        made = Speedup(self.seconds / decode_s, self.error / decode_s, self.n)
        return made if made.sure else None


class PlainPass(msgspec.Struct, array_like=True):
    """What plain decoding would have taken for a token of the answer so far: milliseconds, standard error, plain passes."""

    ms: float
    error: float
    n: int


class Report(msgspec.Struct):
    """One finished answer; `outrider run --json` prints it. Keys are only ever added."""

    model: str
    drafter: str  # what was asked
    rule: str
    seed: int
    text: str  # the answer alone
    token_ids: list[int]  # thoughts included; without the EOS and without tokens wholly cut by a stop string
    prompt_tokens: int
    finish: Finish
    passes: int  # decode passes, prefill excluded
    proposed: int  # verified draft nodes
    accepted: int  # accepted ones, later cut or not
    kinds: str  # one letter for each of token_ids
    timing: Timing
    tokens_per_second: float  # (tokens - 1) / decode_s
    drafters: dict[str, int]  # passes by drafter, "none" for plain ones
    speedup: Speedup | None  # None where it is not sure
    thinking: str = ""  # what the model thought, without its markers
    reused: int = 0  # of the prompt's tokens, kept from the previous answer
    limit: Limit | None = None  # which limit ended it, where `finish` is "length"
    loops: bool = False  # it repeats one passage over and over, so that its figures say nothing of other text
    sampling: Sampling | None = None  # the values that held, the model's own and the defaults filled in
    plain: PlainTime | None = None  # what `speedup` is made from, sure or not; answers are added up by it


class KnownDrafter(msgspec.Struct, kw_only=True):
    """A published drafter. Without `repo` it is in the target's own files."""

    method: str
    repo: str = ""
    license: str = ""
    nbytes: int = 0  # 0: not known
    about: bool = False  # the size is rounded
    note: str = ""
    path: str | None = None  # where it is on this machine, None = not here


class MemoryPlan(msgspec.Struct, kw_only=True):
    """Bytes that a model takes in memory."""

    device: str
    dtype: str
    quantize: str
    context: int  # tokens
    weights: int
    states: int | None  # keys and values at the full context; None: not known before the model is here
    drafter: int = 0
    overhead: int
    total: int
    free: int | None = None  # None: this machine does not tell
    verdict: Literal["fits", "tight", "no", ""] = ""  # "": free is not known
    instead: str = ""  # the nearest choice that fits, where this one does not
    about: bool = False  # estimated from the number of parameters


class ModelRow(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of `models list`."""

    name: str
    title: str = ""
    path: str | None = None  # where it is, None = not here yet
    nbytes: int = 0
    format: str = ""  # gguf, safetensors
    family: str = ""
    license: str = ""
    sources: list[str] = []  # where it would come from, first that answers
    detail: dict[str, Any] = {}  # `models show` only: spec, quantisation, context, template …
    problem: str = ""  # what is wrong with it, if anything
    series: str = ""  # what follows is the catalogue's, nothing where it does not know the model
    tier: int = 0  # 1: most people run it … 3: some do
    parameters: int = 0
    active: int = 0  # of them used for one token, where not all are
    context: int = 0  # tokens
    form: str = ""  # what the weights are stored as
    about: bool = False  # size and parameters are rounded
    gated: bool = False  # its terms have to be accepted on the hub first
    gguf: str = ""  # a repository with GGUF files of it
    unsupported: str = ""  # why the engine cannot run it yet
    drafters: list[KnownDrafter] = []  # made for it
    plan: MemoryPlan | None = None  # `models show` and the whole catalogue only
    source: str = ""  # who keeps it: library, Hugging Face cache, LM Studio, ollama, llama.cpp; empty = not here
    quantisation: str = ""  # Q4_K_M, bf16, …, where it is known
    revision: str = ""  # of the hub's repository, as it was asked for
    commit: str = ""
    partial: int = 0  # bytes that a stopped pull left here, of `nbytes`
    note: str = ""  # what a pull decided, if the user should know


class DrafterRow(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of `drafters list`."""

    name: str
    distribution: str = ""
    version: str = ""
    fit: Literal["exact", "family", "any", "no", "broken"] = "no"
    reason: str = ""
    nbytes: int = 0
    weights: str | None = None
    trusted: bool = False  # its `probs` are honoured
    usable: bool = False  # can be chosen now, as it is
    gain: float = 1.0  # tokens per pass: what its author expects, or what was measured in training
    where: Where = ""  # of its weights; "": it needs none
    known: list[KnownDrafter] = []  # published ones for this model
    free: bool = False  # costs next to nothing and is asked in every round
    choice: str = ""  # what `auto` makes of it here by what was measured, in words
    trains: bool = False  # one can be trained here
    options: dict[str, str] = {}  # what --drafter-option may set, with its meaning
    seconds: float = 0.0  # that its method took to say whether it fits, if that was long


class Loaded(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What `Load` results in."""

    model: str  # the name that was asked
    title: str
    family: str
    parameters: int
    nbytes: int
    bits: float = 0.0  # of memory for each parameter
    dtype: str
    device: str
    threads: int
    context: int
    chat: bool  # has a chat template
    load_s: float
    sampling: Sampling  # the model's defaults, filled
    drafters: list[DrafterRow]
    phases: dict[str, float] = {}  # seconds of each phase of loading
    memory: MemoryPlan | None = None  # as it came out, without a drafter; `free` is what is left


class Finding(msgspec.Struct, omit_defaults=True):
    """One line of `doctor`. `level`: ok, note, problem."""

    level: Literal["ok", "note", "problem"]
    topic: str
    text: str
    fix: str = ""


class BenchPrompt(msgspec.Struct, omit_defaults=True):
    """A benchmark prompt; only the user's turns are given."""

    id: str
    category: str
    turns: list[str]
    source: str = ""


class TrainPrompt(msgspec.Struct, omit_defaults=True):
    """What the target answers for a training: messages of a chat, the last one the user's, or a text that goes on."""

    messages: list[Message] | None = None
    text: str | None = None


class TrainOrder(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is to be trained and from what. `None`: as the method and the budget make it."""

    method: str
    folder: str  # of the run
    budget_s: float | None = None  # for all of it
    answers: int | None = None  # prompts that are answered
    text: str | None = None  # a file that is learnt from instead
    epochs: float | None = None
    temperature: float = 0.7
    greedy: float = 0.25  # share of the answers that is made at temperature 0
    answer_tokens: int = 256  # of an answer, at most
    longest: int = 1024  # tokens of a text; longer ones are cut
    rate: float | None = None
    step_tokens: int | None = None  # of answers that a step learns from
    seed: int = 0
    threads: int | None = None
    cache: bool = True  # the target's states are kept on disk while the run lasts
    options: dict[str, str] = {}  # of the method
    continue_from: str | None = None  # folder of a drafter that is trained on; None: a fresh one
    answers_of: str | None = None  # folder of a run whose prompts and answers are taken; None: they are made
