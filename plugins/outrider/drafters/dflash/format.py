"""What a DFlash checkpoint is: a plan read from its config, and the tensors that it must hold. Loads no torch.

Read are z-lab's files (keys at the top or inside `dflash_config`), those of transformers (`encoder.fc`), DeepSpec and SpecForge
(DSpark) and the speculators container (layers inside `transformer_layer_config`, boundary ids, reduced vocabulary). What the
tensors say counts, not the declared architecture.

Letters: `d` width, `P` target states a context row is made from, `r` rank of a small head, `V` vocabulary, `Vd` of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from outrider.core.base.errors import ModelError
from outrider.core.drafting.files import DraftConfig, DraftFiles, DraftSpec

if TYPE_CHECKING:
    from outrider.core.drafting import ModelInfo

LONGEST = 64  # slots of a block: as far as a pass may reach beyond the context
AGAIN = "Download the drafter again, whole, or take another one."
OTHERS = {  # tensors of relatives that draft in another way
    "prefix_gru.": "a Domino drafter, which is not read",
    "aux_hidden_norms.": "Laguna's DFlash, which is not read",
    "markov_head.gate_proj.": "a DSpark drafter with a gated Markov head, which is not read",
    "markov_head.joint_proj.": "a DSpark drafter with a recurrent Markov head, which is not read",
}
FUSED = (("fc.weight", "hidden_norm.weight"), ("encoder.fc.weight", "encoder.output_norm_enc.weight"))
W1 = ("markov_head.markov_w1.weight", "markov_w1.weight")
W2 = ("markov_head.markov_w2.weight", "markov_w2.weight")
SURE = ("confidence_head.proj.weight", "confidence_proj.weight")
BEFORE = ("candidate_selector.predecessor_codebook", "candidate_selector.predecessor_codebook.weight")
AFTER = ("candidate_selector.successor_codebook", "candidate_selector.successor_codebook.weight")
QUERY = "candidate_selector.hidden_projection.weight"
UNREAD = ("attention_sink_bias", "attention_value_scale", "use_gemma_norm")  # settings that change the blocks
IGNORED = frozenset({"embed_tokens.weight", "lm_head.weight"})  # copies of the target's


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read where they leave it open; None: as they were trained."""

    window: Literal["slot", "anchor"] | None = None  # where windows end
    causal: Literal["sliding", "all", "none"] | None = None  # layers whose slots do not look ahead
    sample_from_anchor: bool | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """Whom a slot sees: slots after it unless `causal`; of the context all, or `window` positions."""

    causal: bool
    window: int = 0
    reading: Literal["slot", "anchor"] = "slot"  # a window ends at each slot, or at the anchor for all of them


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything but the numbers."""

    name: str
    prefix: str  # of every tensor name
    spec: DraftSpec  # width, eps and one layer spec for each draft layer
    sights: tuple[Sight, ...]  # one for each layer
    states: tuple[int, ...]  # P numbers of target states
    block: int  # slots, the anchor included
    mask: int  # id that fills the slots behind the anchor
    from_anchor: bool  # slot j tells the token behind its position, so the anchor's slot drafts too
    embed_scale: float
    reduced: int  # Vd of a head of its own, 0: the target's head
    tied: bool  # the rows of a reduced head are the target's, and left out
    logit_scale: float  # of its own head
    logit_cap: float | None
    markov: int  # r, 0: none
    sure: int  # inputs of the confidence head, 0: none
    taps: int  # of the convolutions around both mixers, 0: none
    group: int  # channels of a convolution that share what is added to its kernel
    selector: int  # r, 0: none
    candidates: int
    target_layers: int | None  # what it says of its target, as far as it does
    vocab: int | None

    @property
    def drafts(self) -> int:
        """Tokens of a whole block."""
        return self.block if self.from_anchor else self.block - 1


def recognised(names: frozenset[str]) -> str | None:
    """Why these tensors are no DFlash drafter that is read; None if they are one."""
    bare = {name.removeprefix("model.") for name in names}
    for start, what in OTHERS.items():
        if any(name.startswith(start) for name in bare):
            return what
    if not any(bare.issuperset(pair) for pair in FUSED) or "layers.0.self_attn.q_proj.weight" not in bare:
        return "no DFlash drafter (it lacks fc, hidden_norm or layers.0)"
    return None


def read_plan(files: DraftFiles, reading: Reading = Reading()) -> Plan:
    """The plan of files whose tensors are `recognised`. Raises ModelError if config and tensors do not go together.

    As they were trained, windows end at the anchor in the speculators container, else at each slot.
    """
    return _Read(files, reading).plan()


def misfit(plan: Plan, model: ModelInfo) -> str | None:
    """Why the drafter cannot serve this target; None if it can."""
    told = (
        ("width", plan.spec.width, model.width),
        ("layers", plan.target_layers, model.layers),
        ("vocabulary", plan.vocab, model.vocab),
    )
    for what, wants, has in told:
        if wants is not None and wants != has:
            return f"{plan.name} was made for another model: {what} {wants}, {model.name} has {has}"
    if max(plan.states) > model.layers:
        return f"{plan.name} reads layer {max(plan.states)}, {model.name} has {model.layers}"
    if plan.mask >= model.vocab:
        return (
            f"the mask token {plan.mask} of {plan.name} is no token of {model.name}, whose ids end at {model.vocab - 1}"
        )
    return None


class _Read:
    """One reading of the files."""

    def __init__(self, files: DraftFiles, reading: Reading) -> None:
        self.name, names = files.path.name, frozenset(files.names())
        self.prefix = "model." if all(name.startswith("model.") for name in names) else ""
        self.shapes = {name.removeprefix(self.prefix): tuple(files.shape(name)) for name in names}
        config = DraftConfig(files.config, f"{self.name}: the config", AGAIN)
        self.speculators = config.word("speculators_model_type", default="")
        self.reading = reading
        self.layers = config.table("transformer_layer_config") if config.has("transformer_layer_config") else config
        self.nested = config.table("dflash_config")
        self.config = config

    def section_of(self, key: str) -> DraftConfig:
        """Where a setting is: in `dflash_config` or at the top; files differ in which."""
        return self.nested if self.nested.has(key) else self.config

    def needed(self, key: str, place: DraftConfig | None = None) -> DraftConfig:
        """The same for a setting that has no default; one that is nowhere counts as null."""
        place = place or self.section_of(key)
        return place if place.has(key) else place.given(**{key: None})

    def flag(self, *places: tuple[DraftConfig, str]) -> bool | None:
        """The first that is there of these; None if none is."""
        return next((place.flag(key) for place, key in places if place.has(key)), None)

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"{self.name}: {what}.", AGAIN)

    def first(self, *names: str) -> tuple[int, ...]:
        """Shape of the first tensor that is there, () if none is."""
        return next((self.shapes[name] for name in names if name in self.shapes), ())

    # ------------------------------------------------------------------ the plan

    def plan(self) -> Plan:
        """All of it, checked against the tensors."""
        sights = self._sights()
        spec = self._spec(sights)
        reduced = self._reduced()
        markov, selector = self.first(*W1), self.first(*BEFORE)
        block = self._block()
        if block > LONGEST or any(sight.window and block > sight.window for sight in sights):
            raise self.wrong(f"a block of {block} does not fit into {LONGEST} positions and the layers' windows")
        vocab = self.layers.integer("vocab_size") if self.layers.has("vocab_size") else None
        vocab = (self.first("t2d") or (vocab,))[0]
        plan = Plan(
            name=self.name,
            prefix=self.prefix,
            spec=spec,
            sights=sights,
            states=self._states(spec.width),
            block=block,
            mask=self.needed("mask_token_id").integer("mask_token_id", 0),
            from_anchor=self._from_anchor(),
            embed_scale=self.section_of("input_embedding_scale").factor("input_embedding_scale", 1.0),
            reduced=reduced,
            tied=reduced > 0 and self._tied,
            logit_scale=self.section_of("output_multiplier").factor("output_multiplier", 1.0),
            logit_cap=self.section_of("final_logit_softcapping").optional_factor("final_logit_softcapping"),
            markov=markov[-1] if markov else 0,
            sure=(self.first(*SURE) or (0,))[-1],
            taps=(self.first("layers.0.attention_conv.base_kernel") or (0, 0))[1],
            group=self.section_of("conv_group_size").integer("conv_group_size", default=16),
            selector=selector[-1] if selector else 0,
            candidates=self.section_of("selector_top_k").integer("selector_top_k", high=1 << 62, default=16),
            target_layers=self._target_layers(),
            vocab=vocab if vocab is not None else (markov or selector or (None,))[0],
        )
        self._check(plan)
        return plan

    def _block(self) -> int:
        key, least = "block_size", 2
        sizes = [place.integer(key, least) for place in (self.config, self.nested) if place.has(key)]
        if len(set(sizes)) > 1:
            raise self.wrong(f"the config gives two block sizes, {sizes[0]} and {sizes[1]}")
        return sizes[0] if sizes else self.needed(key).integer(key, least, default=8 if self.speculators else None)

    def _target_layers(self) -> int | None:
        place = self.section_of("num_target_layers")
        return place.integer("num_target_layers") if place.has("num_target_layers") else None

    def _states(self, width: int) -> tuple[int, ...]:
        """Boundary ids of the speculators container as they are, all others count outputs of layers."""
        shape = self.first(*(pair[0] for pair in FUSED))
        count = shape[-1] // width if len(shape) == 2 and shape[-1] % width == 0 else 0
        key, step = ("aux_hidden_state_layer_ids", 0) if self.speculators else ("target_layer_ids", 1)
        ids = self.section_of(key).layer_numbers(key, -step) if self.section_of(key).has(key) else None
        if ids is None and not self.speculators and count:
            ids = _default_ids(self.section_of("num_target_layers").layer_number("num_target_layers"), count)
        if ids is None or len(ids) != count:
            raise self.wrong(f"fc takes {count} target states, {key} names {ids!r}")
        return tuple(each + step for each in ids)

    def _from_anchor(self) -> bool:
        key, value = "sample_from_anchor", self.reading.sample_from_anchor
        value = self.flag((self.nested, key), (self.config, key)) if value is None else value
        if value is not None:
            return value
        dspark = self.speculators == "dspark" or self.section_of("projector_type").is_word("projector_type", "dspark")
        return dspark or bool(self.first(*W1)) or (not self.speculators and self.config.has("markov_rank"))

    def _sights(self) -> tuple[Sight, ...]:
        count = self.layers.layer_number("num_hidden_layers")
        native, slides = FUSED[1][0] in self.shapes, self.section_of("use_swa").flag("use_swa")
        everywhere = slides or (native and not self.layers.has("layer_types"))
        kinds = ["sliding_attention"] * count if everywhere else self._kinds(count)
        causal = self.flag((self.config, "is_causal"), (self.nested, "causal"))
        if causal is None and (native or slides or self._open()):
            causal = False
        if self.reading.causal is not None:
            causal = {"sliding": None, "all": True, "none": False}[self.reading.causal]
        return tuple(self._sight(kind, causal) for kind in kinds)

    def _sight(self, kind: str, told: bool | None) -> Sight:
        slides = kind == "sliding_attention"
        causal = slides if told is None else told
        if not slides:
            return Sight(causal and (not self.speculators or self.reading.causal == "all"))
        own = self.section_of("swa_window_size")
        width = own.integer("swa_window_size", 0, default=0) or self.needed("sliding_window", self.layers).integer(
            "sliding_window"
        )
        return Sight(causal, width, self.reading.window or ("anchor" if self.speculators else "slot"))

    def _open(self) -> bool:
        """Whether a speculators file says that sliding layers look ahead; its DFlash2 does by default."""
        value = self.config.flag("sliding_window_non_causal", self.speculators == "dflash2")
        return value and bool(self.speculators)

    def _kinds(self, count: int) -> list[str]:
        if self.layers.has("layer_types"):
            kinds = self.layers.layer_kinds()
            if len(kinds) != count:
                raise self.wrong(f"layer_types names {kinds!r} for {count} layers")
            return kinds
        first = count
        if self.layers.flag("use_sliding_window"):
            first = self.layers.integer("max_window_layers", 0, default=0)
        return ["full_attention" if index < first else "sliding_attention" for index in range(count)]

    def _spec(self, sights: tuple[Sight, ...]) -> DraftSpec:
        """Its own rope over whole heads, whatever the target's is; windows one wider where they end at the anchor."""
        return (
            self.layers.whole_heads()
            .given(mlp_bias=None)
            .layers(
                [sight.window + (sight.reading == "anchor") for sight in sights],
                vocab=self.layers.integer("vocab_size", default=1),
                qk_norm="head" if "layers.0.self_attn.q_norm.weight" in self.shapes else "",
            )
        )

    @property
    def _tied(self) -> bool:
        return self.config.flag("tied_to_target") and not self.first("lm_head.weight")

    def _reduced(self) -> int:
        """Vd where a table of offsets goes with a head of its own."""
        offsets, head = self.first("d2t"), self.first("lm_head.weight")
        if not offsets:
            return 0
        if self._tied:
            return offsets[0]
        told = self.config.integer("draft_vocab_size", default=(*head, 1)[0])
        if len(head) != 2 or offsets != (head[0],) or told != head[0]:
            raise self.wrong(f"d2t is {_by(offsets)}, lm_head {_by(head)}, the config says {told}")
        return head[0]

    # ------------------------------------------------------------------ against the tensors

    def _check(self, plan: Plan) -> None:
        """Every tensor is there in its shape, and no other."""
        self._agree(plan)
        wanted = {**_block_shapes(plan), **self._head_shapes(plan)}
        for name, shape in wanted.items():
            if name not in self.shapes:
                raise self.wrong(f"it has no tensor {name}")
            if self.shapes[name] != shape:
                raise self.wrong(f"{name} is {_by(self.shapes[name])}, the config says {_by(shape)}")
        ignored = {n for n in self.shapes if n.startswith("verifier_") or n.endswith("rotary_emb.inv_freq")}
        extra = sorted(set(self.shapes) - set(wanted) - IGNORED - ignored)
        if extra:
            raise self.wrong(f"it holds tensors that are not known: {', '.join(extra[:4])}")

    def _agree(self, plan: Plan) -> None:
        """The settings are known here, and say what the tensors say."""
        kind = (self.config if self.config.has("markov_head_type") else self.nested).word(
            "markov_head_type", default="vanilla"
        )
        odd = [key for key in UNREAD if self.section_of(key).holds(key)]
        if odd:
            raise self.wrong(f"it is a kind of DFlash that is not read ({', '.join(odd)})")
        if plan.markov and kind != "vanilla":
            raise self.wrong(f"its Markov head is of the kind {kind!r}, which is not read")
        for key, found in (("markov_rank", plan.markov), ("conv_kernel_size", plan.taps)):
            told = self.section_of(key).integer(key, 0, default=found)
            if found and told != found:
                raise self.wrong(f"the config gives a {key} of {told}, the tensors have {found}")
        if plan.selector and plan.reduced:
            raise self.wrong("a candidate selector needs the whole vocabulary, this file has a reduced one")
        if plan.sure not in (0, plan.spec.width, plan.spec.width + plan.markov):
            raise self.wrong(f"its confidence head takes {plan.sure} inputs")
        if plan.taps and plan.spec.width % plan.group:
            raise self.wrong(f"groups of {plan.group} channels do not divide a width of {plan.spec.width}")

    def _head_shapes(self, plan: Plan) -> dict[str, tuple[int, ...]]:
        """Fused states and small heads, under the names that this file gives them."""
        d, vocab = plan.spec.width, plan.vocab or 0
        fc, norm = next(pair for pair in FUSED if pair[0] in self.shapes)
        shapes: dict[str, tuple[int, ...]] = {fc: (d, len(plan.states) * d), norm: (d,), "norm.weight": (d,)}
        named: list[tuple[tuple[str, ...], tuple[int, ...]]] = []
        if plan.markov:
            named += [(W1, (vocab, plan.markov)), (W2, (plan.reduced or vocab, plan.markov))]
        if plan.sure:
            named += [(SURE, (1, plan.sure))]
        if plan.selector:
            named += [((QUERY,), (plan.selector, d))]
            named += [(codebook, (vocab, plan.selector)) for codebook in (BEFORE, AFTER)]
        shapes |= {next((n for n in names if n in self.shapes), names[0]): shape for names, shape in named}
        bias = next((n for n in SURE if n in self.shapes), "").replace(".weight", ".bias")
        if bias in self.shapes:
            shapes[bias] = (1,)
        if plan.reduced:
            shapes |= {"d2t": (plan.reduced,)} | ({} if plan.tied else {"lm_head.weight": (plan.reduced, d)})
            if "t2d" in self.shapes:
                shapes["t2d"] = (vocab,)
        return shapes


def _block_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The tensors of all layers."""
    d, shapes = plan.spec.width, plan.spec.shapes()
    for index in range(len(plan.sights)) if plan.taps else ():
        for name in ("attention_conv", "mlp_conv"):
            at = f"layers.{index}.{name}."
            shapes |= {f"{at}base_kernel": (2, plan.taps, d)}
            shapes |= {f"{at}kernel_projection.weight": (2 * plan.taps * (d // plan.group), d)}
    return shapes


def _default_ids(layers: int, count: int) -> list[int]:
    """z-lab's list where the config has none: evenly from layer 1 to the third last."""
    if count == 1:
        return [layers // 2]
    return [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)]


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "missing"
