"""What can be set: one struct per section of the file, each field with its type, default and a sentence about it.

The file's comments, its validation, the names of environment variables, the help of command-line options and the JSON
Schema all come from here. There is no null in TOML: where a value may be left to somebody else, `"default"` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from outrider.core.base import protocol

DEFAULT = "default"
Unset = Literal["default"]
Tokens = Annotated[int, Meta(ge=protocol.LEAST_CONTEXT, le=protocol.MOST_TOKENS)]
Threads = Annotated[int, Meta(ge=1, le=protocol.most_threads())]  # of this machine
Theme = Literal[
    "auto",
    "dark",
    "light",
    "contrast",
    "nord",
    "gruvbox",
    "catppuccin-mocha",
    "catppuccin-latte",
    "dracula",
    "tokyo-night",
    "monokai",
    "flexoki",
    "solarized-light",
    "solarized-dark",
    "rose-pine",
    "rose-pine-dawn",
    "ansi-dark",
    "ansi-light",
]


class Look(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How the chat looks."""

    theme: Annotated[Theme, Meta(description="Colours; auto follows the terminal's background.")] = "auto"
    marks: Annotated[
        Literal["accepted", "passes", "corrections", "confidence", "off"],
        Meta(
            description="What is marked in replies: the words that a drafter guessed, each pass of the model, the words "
            "where a guess was wrong, or those that were unlikely."
        ),
    ] = "accepted"
    gutter: Annotated[
        bool, Meta(description="Beside each line of a reply, how much of it was guessed; not below 80 columns.")
    ] = True
    stats: Annotated[
        Literal["chip", "strip", "panel"],
        Meta(description="Figures of drafting: in the status line alone, as a strip above the prompt, or as a panel."),
    ] = "chip"
    details: Annotated[
        bool,
        Meta(
            description="Ask for what stood behind each token of every reply, for the inspector; costs a little speed."
        ),
    ] = False
    width: Annotated[
        Annotated[int, Meta(ge=0, le=1000)], Meta(description="Cells of text in a line at most; 0 is all there are.")
    ] = 100
    mouse: Annotated[
        bool,
        Meta(description="Wheel and clicks for the chat; false leaves them to the terminal, for its own selection."),
    ] = True
    fps: Annotated[
        Annotated[int, Meta(ge=1, le=120)] | Unset,
        Meta(description="Paints of the screen in a second at most.", extra={"unset": "30, or 15 over SSH"}),
    ] = DEFAULT
    reduced_motion: Annotated[bool, Meta(description="Nothing slides or fades, and scrolling goes by whole lines.")] = (
        False
    )
    screen_reader: Annotated[
        bool | Unset,
        Meta(
            description="Plain lines from top to bottom instead of a screen: whole sentences, everything in words.",
            extra={"unset": "only where the terminal can show no screen"},
        ),
    ] = DEFAULT


class Keys(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which keys do what; `outrider keys` lists them."""

    preset: Annotated[
        Literal["default", "emacs", "vim", "no-fkeys"], Meta(description="The set of keys to begin with.")
    ] = "default"
    bind: Annotated[
        dict[str, list[str]],
        Meta(description="Keys of your own for an action, such as new = ['ctrl+n']; [] takes all away."),
    ] = {}


class Engine(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which model, and how it is loaded."""

    model: Annotated[
        str,
        Meta(
            description="A folder or file, a name from `outrider models list`, or a hub id: org/name, org/name:Q8_0, "
            "org/name@revision."
        ),
    ] = "starter"
    device: Annotated[
        Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$", extra={"words": "auto, cpu, cuda or cuda:N"})],
        Meta(description="Where the model computes: auto, cpu, cuda or cuda:N."),
    ] = "auto"
    dtype: Annotated[Literal["auto", "fp32", "bf16", "fp16"], Meta(description="What the model computes in.")] = "auto"
    quantize: Annotated[
        Literal["auto", "none", "int8", "int4"],
        Meta(
            description="Round the weights while loading: half or a quarter of the memory, a little less exact. "
            "auto keeps them as they are stored, none expands quantised ones."
        ),
    ] = "auto"
    context: Annotated[
        Tokens | Unset, Meta(description="Tokens of context.", extra={"unset": "what model and memory allow"})
    ] = DEFAULT
    threads: Annotated[Threads | Unset, Meta(description="CPU threads.", extra={"unset": "chosen"})] = DEFAULT


class Drafting(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Who guesses ahead, and how guesses are accepted."""

    drafter: Annotated[str, Meta(description="Who drafts: auto, none, or a name from `outrider drafters list`.")] = (
        "auto"
    )
    drafter_weights: Annotated[
        str,
        Meta(
            description="Weights for the drafter: a folder, a hub id (with @REVISION), or the name of a published drafter.",
            extra={"unset": "its own"},
        ),
    ] = DEFAULT
    drafter_options: Annotated[
        dict[str, Any], Meta(description="Settings of the drafter's own, such as { tree = 'chain' }.")
    ] = {}
    draft_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=protocol.MOST_DRAFTED)] | Unset,
        Meta(description="Draft exactly this many tokens a round.", extra={"unset": "chosen by measurement"}),
    ] = DEFAULT
    rule: Annotated[
        Literal["match", "rejection", "typical"],
        Meta(
            description="How drafts are accepted. match and rejection are lossless; with match even the text does not "
            "depend on the drafter. typical is LOSSY: it keeps whatever the model finds likely enough."
        ),
    ] = "match"
    exact: Annotated[
        bool,
        Meta(
            description="Compute each token alike whatever shares its pass, so that the text is the same to the last bit "
            "with and without drafts. Chains alone are drafted, and a pass may cost more."
        ),
    ] = False


_OWN = {"unset": "the model's own"}


class Sampling(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How words are drawn."""

    temperature: Annotated[float | Unset, Meta(description="0 is greedy, 0.7 usual, above 1 wild.", extra=_OWN)] = (
        DEFAULT
    )
    top_k: Annotated[int | Unset, Meta(description="Keep the N likeliest tokens.", extra=_OWN)] = DEFAULT
    top_p: Annotated[float | Unset, Meta(description="Keep the likeliest tokens up to mass P.", extra=_OWN)] = DEFAULT
    min_p: Annotated[
        float | Unset, Meta(description="Drop tokens below P times the likeliest one's probability.", extra=_OWN)
    ] = DEFAULT
    repeat_penalty: Annotated[float | Unset, Meta(description="Above 1 makes repetition rarer.", extra=_OWN)] = DEFAULT
    presence_penalty: Annotated[float | Unset, Meta(description="Taken off every token that was used.", extra=_OWN)] = (
        DEFAULT
    )
    frequency_penalty: Annotated[
        float | Unset, Meta(description="Taken off for each time a token was used.", extra=_OWN)
    ] = DEFAULT
    seed: Annotated[
        int | Unset, Meta(description="Same seed, same text, whoever drafts.", extra={"unset": "a fresh one"})
    ] = DEFAULT
    max_tokens: Annotated[
        int | Unset, Meta(description="Stop after N tokens.", extra={"unset": "no limit but the context"})
    ] = DEFAULT
    stop: Annotated[list[str], Meta(description="Stop before any of these texts.")] = []


class Chat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the model is told, and how it goes about an answer."""

    system: Annotated[str, Meta(description="System prompt.", extra=_OWN)] = DEFAULT
    think: Annotated[
        bool | Unset,
        Meta(
            description="Have the model think before it answers, or not, where it lets you choose.",
            extra={"unset": "the model's own way"},
        ),
    ] = DEFAULT
    persona: Annotated[
        str, Meta(description="One of the personas below, where --persona names no other.", extra={"unset": "none"})
    ] = DEFAULT


class Folders(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Where large things lie. Everything else moves with OUTRIDER_HOME."""

    models: Annotated[
        str, Meta(description="The local library of models.", extra={"unset": "a folder of Outrider's own"})
    ] = DEFAULT
    builds: Annotated[
        str, Meta(description="What is compiled for this machine.", extra={"unset": "a folder of Outrider's own"})
    ] = DEFAULT


BUNDLED = (Engine, Drafting, Sampling, Chat)  # whose keys a persona or a preset may set


def _bundle(name: str, without: tuple[str, ...]) -> type[Struct]:
    """A struct with the fields of all bundled sections but some."""
    fields = [one for section in BUNDLED for one in msgspec.structs.fields(section) if one.name not in without]
    known = [(one.name, one.type, None) for one in fields]
    return msgspec.defstruct(name, known, kw_only=True, frozen=True, forbid_unknown_fields=True)


if TYPE_CHECKING:

    class Persona(Struct):
        """A named set of system prompt, sampling, model and drafter."""

    class Preset(Struct):
        """What holds for a model, or for every model whose name a pattern matches."""

else:
    Persona = _bundle("Persona", ("persona",))
    Preset = _bundle("Preset", ("persona", "model"))


class Config(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    look: Look = Look()
    keys: Keys = Keys()
    engine: Engine = Engine()
    drafting: Drafting = Drafting()
    sampling: Sampling = Sampling()
    chat: Chat = Chat()
    folders: Folders = Folders()
    personas: Annotated[
        dict[str, Persona], Meta(description="Named sets of the keys of engine, drafting, sampling and chat.")
    ] = {}
    presets: Annotated[
        dict[str, Preset], Meta(description="The same for every model whose name a pattern matches, such as '*qwen*'.")
    ] = {}
    models: Annotated[
        dict[str, Preset], Meta(description="The same for one model by its name; it comes before the presets.")
    ] = {}
