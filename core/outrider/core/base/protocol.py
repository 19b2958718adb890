"""Frames between the engine process and its clients: msgspec structs, length-prefixed msgpack over two pipes.

A client sends requests, the engine answers each with any number of events and exactly one last one: `Done` for a
`Generate`, else `Result` or `Failed`. What needs the model is done in order of arrival; beside that come the answers to
`Models`, `Remove` and `Drafters`, in their own order, and every `Pull` by itself. A frame on the wire is a 4-byte
little-endian length and one msgpack map with the frame's name under `type`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .values import LEAST_CONTEXT as LEAST_CONTEXT
from .values import MOST_DRAFTED as MOST_DRAFTED
from .values import MOST_TOKENS as MOST_TOKENS
from .values import SURE as SURE
from .values import BenchPrompt as BenchPrompt
from .values import DrafterChoice as DrafterChoice
from .values import DrafterRow as DrafterRow
from .values import Finding as Finding
from .values import Finish as Finish
from .values import Kind as Kind
from .values import KnownDrafter as KnownDrafter
from .values import Limit as Limit
from .values import Loaded as Loaded
from .values import MemoryPlan as MemoryPlan
from .values import Message as Message
from .values import ModelChoice as ModelChoice
from .values import ModelRow as ModelRow
from .values import Phase as Phase
from .values import PlainPass as PlainPass
from .values import PlainTime as PlainTime
from .values import RejectedToken as RejectedToken
from .values import Report as Report
from .values import Rule as Rule
from .values import Sampling as Sampling
from .values import Speedup as Speedup
from .values import Timing as Timing
from .values import Token as Token
from .values import TrainOrder as TrainOrder
from .values import TrainPrompt as TrainPrompt
from .values import Where as Where
from .values import most_threads as most_threads
from .values import too_large as too_large
from .wire import ProtocolError as ProtocolError  # the whole language of the pipes is found here
from .wire import Unpacker as Unpacker
from .wire import pack as pack

VERSION = 1


class Frame(msgspec.Struct, tag=True, omit_defaults=True, kw_only=True):
    """Base of everything that travels."""


# ---------------------------------------------------------------------------------------------------- requests


class Request(Frame):
    """Base of what a client sends; `id` is the client's own number and comes back in every answer."""

    id: int


class Load(Request):
    """Make a target ready. Result: `Loaded`."""

    model: ModelChoice
    drafter: DrafterChoice = DrafterChoice()


class Generate(Request):
    """Answer a chat (`messages`) or continue raw text (`prompt`). Loads the model if need be. Ends with `Done` or `Failed`."""

    model: ModelChoice
    messages: list[Message] | None = None
    prompt: str | None = None
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    drafter: DrafterChoice = DrafterChoice()
    rule: str = "match"
    detail: bool = False  # also p, rejected and top
    chances: bool = False  # also p alone, which costs little where no round is launched before the last one is read
    think: bool | None = None  # asks the chat template for thinking or for none; None = the model's own way
    lenient: bool = False  # a drafter that cannot be used is reported once, and the answer goes on without it
    # The last message is the assistant's and is gone on with; these are its token ids, empty where they are not known. Steps
    # and report tell of the new part alone.
    continues: list[int] | None = None


class Cancel(Request):
    """Stop request number `request` within one pass. No answer of its own."""

    request: int


class SetDrafter(Request):
    """Switch the drafter of a running answer between two rounds, or of the next one. Result: the new name."""

    drafter: DrafterChoice


class Models(Request):
    """Local models and the starter. Result: list of `ModelRow`; with `name`, one row with `detail` and `plan`."""

    name: str | None = None
    everything: bool = False  # the whole catalogue, with plans
    choice: ModelChoice = ModelChoice()  # what a plan is made for: device, dtype, quantize, context
    weights: str | None = None  # a drafter that is counted in, as in `DrafterChoice`


class Pull(Request):
    """Bring a model into the local library. Result: `ModelRow`."""

    name: str


class Remove(Request):
    """Delete a model from the local library. Result: `ModelRow` as it was."""

    name: str


class Drafters(Request):
    """Which drafters there are and how each fits the target. Reads no weights. Result: list of `DrafterRow`.

    It fails for a model or weights that are not here, unless `fetch` has them downloaded.
    """

    model: ModelChoice
    weights: str | None = None
    fetch: bool = False


class DrafterTest(Request):
    """A drafter on prompts against plain decoding, or with `conformance` the contract's checks. Result: a dict, as
    `outrider drafters test --json` writes it."""

    model: ModelChoice
    prompts: list[BenchPrompt]
    drafter: DrafterChoice = DrafterChoice()
    limit: int = 64  # tokens of an answer
    conformance: bool = False


class Bench(Request):
    """Every drafter on the same prompts, back to back. Result: a dict, as `outrider bench --json` writes it, also after a
    `Cancel`, if a prompt was done by then."""

    model: ModelChoice
    prompts: list[BenchPrompt]
    drafters: list[DrafterChoice]
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    repeats: int = 1
    steps: bool = False  # every pass is told, with its run
    batch: list[int] = []  # so many answers at once too, plain and with the first drafter


class Verify(Request):
    """The text of every drafter against the plain one, greedy and sampled. Result: a dict, as `outrider verify --json` has it."""

    model: ModelChoice
    prompts: list[BenchPrompt]
    drafters: list[DrafterChoice]
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    rule: str = "match"


class Train(Request):
    """Train a drafter, or continue with a run that was stopped: then `order` names its folder, and the rest is as it was begun.

    Result: a dict, as `outrider train --json` writes it. A `Cancel` leaves the run so that it can go on."""

    order: TrainOrder
    model: ModelChoice | None = None  # None: that of the run
    prompts: list[TrainPrompt] = []
    resume: bool = False


class TrainExport(Request):
    """Write the drafter of a run, as it stands, to a folder that is not there yet. Result: a dict with `folder` and `files`."""

    folder: str  # of the run
    to: str
    whole: bool = False  # also what equals the target's own weights, as other engines need it


class Doctor(Request):
    """What the engine process sees of this machine. Result: list of `Finding`."""


class Quit(Request):
    """End the engine process."""


# ---------------------------------------------------------------------------------------------------- events


class Event(Frame):
    """Base of what the engine sends."""


class Hello(Event):
    """First frame of every engine process."""

    version: int
    outrider: str
    pid: int


class Progress(Event):
    """How far a job is. `total` 0 = not known. `unit`: bytes, tokens, layers, prompts, answers, steps."""

    request: int
    phase: str
    done: float = 0
    total: float = 0
    unit: str = ""
    note: str = ""
    figures: dict[str, float] = {}  # of a training, what a step gave


class Notice(Event):
    """Something the user should know though the job goes on: a drafter failed, a fallback was taken."""

    text: str
    request: int | None = None
    level: Literal["info", "warning"] = "warning"


class Step(Event):
    """One pass of the target. `t`: seconds since the request began."""

    request: int
    seq: int
    t: float
    drafter: str
    proposed: int
    accepted: int
    tokens: list[Token]
    draft_ms: float
    verify_ms: float
    host_ms: float
    depth: int = 0  # levels of what was proposed: of a chain as many as tokens
    rejected: list[RejectedToken] | None = None
    top: list[list[tuple[int, float]]] | None = None  # for each token its 5 best (id, p)
    why: str = ""  # why this drafter and length, in words; only where it changed
    top_text: list[list[str]] | None = None  # the texts of `top`
    phase: Phase = "prose"  # what kind of text it began in
    prompt: int = 0  # tokens of the prompt; of the first step alone
    reused: int = 0  # of them, kept from the previous answer
    plain: PlainPass | None = None  # a few times a second, once it is known
    stands: tuple[int, int] | None = None  # characters of answer and thought that are gone on from, if not all of them


class Done(Event):
    """The last event of a `Generate`."""

    request: int
    finish: Finish
    report: Report


class Result(Event):
    """The last event of any other request; `data` is built of plain types, see `as_type`."""

    request: int
    data: Any = None


class Failed(Event):
    """The request failed: what and why, what to do next. `usage`: the request itself was wrong."""

    request: int
    message: str
    hint: str = ""
    usage: bool = False
    trace: str = ""  # for --debug


Job = Load | Models | Pull | Remove | Drafters | DrafterTest | Bench | Verify | Train | TrainExport | Doctor
AnyRequest = Generate | Cancel | SetDrafter | Quit | Job
AnyEvent = Hello | Progress | Notice | Step | Done | Result | Failed


def plain(value: Any) -> Any:
    """A struct as plain dicts and lists, for `Result.data` and JSON."""
    return msgspec.to_builtins(value)


def as_type(data: Any, kind: Any) -> Any:
    """`Result.data` as the struct that the request's docstring names, e.g. `as_type(data, list[ModelRow])`."""
    return msgspec.convert(data, kind)
