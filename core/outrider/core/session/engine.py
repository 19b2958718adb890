"""The engine: one loaded target with its drafters, and the answers it gives. No screen, no prints, no process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from outrider.core.base.errors import BrokenFileError, DownloadError, DrafterError, ModelError, UsageError
from outrider.core.base.protocol import (
    DrafterChoice,
    Event,
    Generate,
    Message,
    ModelChoice,
    Notice,
    Progress,
    Report,
    Step,
)
from outrider.core.base.trouble import out_of_memory, release
from outrider.core.base.values import MOST_DRAFTED, most_threads
from outrider.core.drafting import active, registry
from outrider.core.library import discovery, memory
from outrider.core.library.jobs import event
from outrider.core.library.library import advice, resolve
from outrider.core.sampling.noise import fresh_seed
from outrider.core.sampling.sample import fill
from outrider.core.text import thinking
from outrider.core.text.detokenise import Detokeniser
from outrider.core.text.template import ChatTemplate
from outrider.core.text.thinking import Splitter

from .answer import Answer, AnswerRequest, Control, check_size
from .batch import Batch
from .composite import Composite
from .loading import Model, open_model
from .pool import PooledDrafter, Wanted, load_drafter
from .resuming import Begun, Resuming

Say = Callable[[Step | Progress | Notice], None]
TAIL = 4096  # characters of a raw text that show what kind of text goes on
RULES = ("match", "rejection", "typical")


class Engine:
    """Holds at most one model; loading another frees the first."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self._warned_for: ModelChoice | None = None  # whose template was said to have no switch for thinking
        self._folding: ModelChoice | None = None  # whose template was asked whether it has a system role

    def load(self, choice: ModelChoice, number: int, say: Say, cancelled: Callable[[], bool]) -> Model:
        """The model of `choice`, loaded if it is not yet. Raises ModelError, DownloadError, UsageError, Cancelled."""
        if self.model is not None and self.model.choice == choice:
            return self.model
        _check_tokens(choice.exact)
        _check_threads(choice.threads)
        began = time.perf_counter()

        def tell(phase: str, done: float, total: float, unit: str = "", note: str = "") -> None:
            say(Progress(number, phase, done, total, unit, note))

        path = resolve(
            choice.model, lambda phase, done, total, note: say(event(number, phase, done, total, note)), cancelled
        )
        self.unload()
        if choice.threads:  # for loading; how many are best without that is measured then
            torch.set_num_threads(choice.threads)
        try:
            self.model = open_model(choice, path, tell, cancelled)
        except BrokenFileError as error:
            error.hint = advice(error.hint, choice.model)
            raise
        for text in self.model.remarks:
            say(Notice(text, number))
        self.model.loaded.load_s = time.perf_counter() - began
        for row in self.model.rows:
            if row.seconds:
                say(Notice(f"The drafter {row.name} took {row.seconds:.1f} s to say whether it fits.", number, "info"))
        return self.model

    def unload(self) -> None:
        """Free the model, its cache and its drafters."""
        if self.model is not None:
            self.model.cache.drafters.close()
        self.model = None
        release()

    def forget(self) -> None:
        """Drop the conversation, so that the next answer prefills its whole prompt."""
        if self.model is not None:
            self.model.cache.reuse([])

    def generate(self, request: Generate, say: Say, control: Control) -> Report:
        """One answer. Raises an OutriderError before any token if the request cannot be met."""
        began = time.perf_counter()
        _check(request)
        fresh = self.model is None or self.model.choice != request.model
        model = self.load(request.model, request.id, say, control.cancelled)
        order = self.order(model, request, began, fresh=fresh)
        self._warn_no_thinking_switch(model, request, say)
        self._warn_folded(model, request, say)
        answer = Answer(order, model.cache, model.policy, self.chooser(model, request, say, control), say)
        try:
            report = answer.run(control)
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error):  # the next answer has the memory of the drafters that this one did without
                while model.cache.drafters.make_room():
                    pass
            raise
        self._warn_slow(model, request, say)
        model.history.save(model.policy)
        return report

    def generate_many(
        self, requests: Sequence[Generate], say: Callable[[Event], None], control: Control, batch: int | None = None
    ) -> list[Report]:
        """Answers to several requests of one model at once, each as `generate` would give it; see `batch.Batch`.

        At most `batch` of them run together, None: as many as fit into memory. Raises as `generate`, before any answer.
        """
        began = time.perf_counter()
        for request in requests:
            _check(request)
            if request.model != requests[0].model:
                raise UsageError(
                    "Answers that are made together need one model.", "Ask for each model's by themselves."
                )
        if not requests:
            return []
        model = self.load(requests[0].model, requests[0].id, say, control.cancelled)
        orders = [self.order(model, request, began) for request in requests]
        drafters = [self.chooser(model, request, say, control)(request.drafter) for request in requests]
        batch_run = Batch(model.cache.target, model.policy, list(zip(orders, drafters, strict=True)), say)
        reports = batch_run.run(control, batch)
        model.history.save(model.policy)
        return reports

    def order(self, model: Model, request: Generate, began: float, *, fresh: bool = False) -> AnswerRequest:
        """What a request comes to with all choices settled; `fresh`: the model was loaded for it. Raises UsageError."""
        begun = self._begun(model, request)
        prompt = begun.prompt
        ids = [*self.prompt_ids(model, request, prompt), *begun.ids]
        vocab = model.cache.target.vocab
        unknown = [token for token in request.sampling.logit_bias if token >= vocab]
        if unknown:
            raise UsageError(f"--logit-bias {unknown[0]} is no token of this model.", f"Ids go from 0 to {vocab - 1}.")
        seed = request.sampling.seed
        return AnswerRequest(
            request=request.id,
            model=request.model.model,
            ids=ids,
            settings=fill(request.sampling, model.sampling),
            seed=fresh_seed() if seed is None else seed,
            rule=request.rule,
            drafter=request.drafter,
            eos=model.tokenizer.eos_ids,
            pieces=Detokeniser(model.tokenizer),
            decode=lambda tokens: model.tokenizer.decode(list(tokens)),
            stop=tuple(request.sampling.stop),
            limit=request.sampling.max_tokens,
            detail=request.detail,
            chances=request.chances,
            splitter=self._splitter(model, request, prompt),
            tail=prompt[-TAIL:] if request.prompt is not None else "",
            before=begun.ids,
            shown=_shown(request),
            stable=self.stable(model, request, ids),
            load_s=model.loaded.load_s if fresh else 0.0,
            began=began,
        )

    def chooser(
        self, model: Model, request: Generate, say: Say, control: Control
    ) -> Callable[[DrafterChoice], active.ActiveDrafter | None]:
        """What makes a loaded drafter of a choice, for the answer to a request."""

        asked: list[DrafterChoice] = []

        def choose(choice: DrafterChoice) -> active.ActiveDrafter | None:
            if asked:  # a switch in the middle of the answer
                self.ask_again(choice)
            asked.append(choice)

            def bring(phase: str, done: float, total: float, note: str) -> None:
                say(event(request.id, phase, done, total, note))

            def report(text: str) -> None:
                say(Notice(text, request.id))

            try:
                return self.drafter(model, choice, report, bring, control.cancelled)
            except (DrafterError, ModelError, DownloadError) as error:
                if not request.lenient or choice != request.drafter:
                    raise
                if choice not in model.refused:
                    model.refused.append(choice)
                    report(f"{error.message} Going on without it.")
                return None

        return choose

    def prompt(self, model: Model, request: Generate) -> str:
        """The text that a request begins with: the chat through the model's template, raw text as it is. Raises UsageError."""
        if request.prompt is not None or not request.messages:
            return request.prompt or ""
        template = model.tokenizer.template
        if template is None:
            raise UsageError(
                f"{request.model.model} has no chat template.", "Use `outrider run --raw`, or a chat model."
            )
        written = [message.content.strip() for message in request.messages]  # a template may trim them
        check_size([*written, request.messages[-1].thinking], model.tokenizer, model.cache.target.context)
        return template.render(_asked(request), **_switches(template, request))

    def _begun(self, model: Model, request: Generate) -> Begun:
        """Where the answer begins, or goes on. Raises UsageError."""
        prompt, template = self.prompt(model, request), model.tokenizer.template
        if request.continues is None or template is None:
            return Begun(prompt, [])
        form = thinking.find(template.source, model.tokenizer)
        pieces = partial(Detokeniser, model.tokenizer)
        resuming = Resuming(template, model.tokenizer, pieces, form, model.cache.target.vocab)
        return resuming.begin(prompt, request.messages or [], request.continues, _switches(template, request))

    def prompt_ids(self, model: Model, request: Generate, prompt: str | None = None) -> list[int]:
        """Token ids of a request; `prompt`: its text, if it is known already. Raises UsageError."""
        text = self.prompt(model, request) if prompt is None else prompt
        check_size([text], model.tokenizer, model.cache.target.context)
        encode = model.tokenizer.encode_chat if request.prompt is None else model.tokenizer.encode_raw
        ids = encode(text) if text else []
        if not ids or (request.messages and not any(m.content.strip() for m in request.messages if m.role == "user")):
            raise UsageError("The prompt is empty.", "Give some text: outrider run 'Why is the sky blue?'")
        return ids

    def stable(self, model: Model, request: Generate, ids: list[int]) -> int:
        """How many of `ids` the next prompt will share: all before the generation prompt, or all but one of a raw text.

        0 where states can be cut anywhere.
        """
        template = model.tokenizer.template
        if model.cache.target.cache.cut:
            return 0
        if template is None or not request.messages:
            return len(ids) - 1
        options = _switches(template, request)
        bare = model.tokenizer.encode_chat(template.render(_asked(request), add_generation_prompt=False, **options))
        shared = 0
        while shared < min(len(bare), len(ids) - 1) and bare[shared] == ids[shared]:
            shared += 1
        return shared

    def _splitter(self, model: Model, request: Generate, prompt: str) -> Splitter | None:
        """What takes the thoughts out of the answer to a chat; None for raw text and where the model has none."""
        template = model.tokenizer.template
        if request.prompt is not None or template is None:
            return None
        form = thinking.find(template.source, model.tokenizer)
        return Splitter(form, prompt) if form is not None else None

    def _warn_no_thinking_switch(self, model: Model, request: Generate, say: Say) -> None:
        """Say once for each model that its template writes the same whether it is asked for thinking or not."""
        if request.think is None or request.prompt is not None or self._warned_for == request.model:
            return
        asked, other = (self.prompt(model, msgspec.structs.replace(request, think=way)) for way in (True, False))
        if asked == other:
            self._warned_for = request.model
            say(Notice(f"The chat template of {request.model.model} has no switch for thinking.", request.id, "info"))

    def _warn_folded(self, model: Model, request: Generate, say: Say) -> None:
        """Say once for each model that its template has no place for a system text."""
        messages, template = _asked(request), model.tokenizer.template
        if template is None or self._folding == request.model or not messages or messages[0].role != "system":
            return
        self._folding = request.model
        if template.folds(messages):
            text = f"The chat template of {request.model.model} knows no system text: it is put in front of the first question."
            say(Notice(text, request.id, "info"))

    def _warn_slow(self, model: Model, request: Generate, say: Say) -> None:
        """Say once for each model that its passes could not be captured."""
        runner = model.cache.target.graph_runner
        if runner is not None and runner.capture.trouble and not model.slow:
            model.slow = True
            say(
                Notice(f"Without CUDA graphs, so slower than it could be: {runner.capture.trouble}", request.id, "info")
            )

    def drafter(
        self,
        model: Model,
        choice: DrafterChoice,
        report: Callable[[str], None],
        bring: Callable[[str, int, int, str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> active.ActiveDrafter | None:
        """The loaded drafter of `choice`, None for plain decoding. Weights that are not here are downloaded by `bring`.

        Raises DrafterError, ModelError if an explicit choice cannot be used, and what downloading weights raises. `auto` without
        weights never fails: what cannot be loaded is reported, and left out. One that failed, in loading or while it drafted,
        is not read again until the user asks for it: None, or what loading it raised.
        """
        names, weights = self._drafters(model, choice, bring, cancelled)
        if not names:
            return None
        registry.check_options(names[-1], choice.options)
        wanted = [self._wanted(model, name) for name in names[:-1]]
        wanted.append(self._wanted(model, names[-1], weights, choice.options))
        pool = model.cache.drafters
        able = [one for one in wanted if not pool.failed(one)]
        if not able:
            pool.complain(wanted[-1])
            return None
        try:
            parts = pool.take(able, lambda one: self._load_drafter(model, one, report))
        except (DrafterError, ModelError) as error:
            if choice.name != "auto" or choice.weights is not None:
                raise
            report(f"{error.message} Going on without it.")
            return self.drafter(model, choice, report, bring, cancelled)
        alone = len(parts) == 1 and not parts[0].free
        return parts[0] if alone else Composite(parts, model.policy, trees=model.cache.target.trees)

    def ask_again(self, choice: DrafterChoice) -> None:
        """The user asked for a drafter: what failed of it is tried again, and reported again."""
        if self.model is not None:
            self.model.cache.drafters.forgive(choice.name.replace("-", "_"))
            self.model.refused = [other for other in self.model.refused if other != choice]

    def _drafters(
        self,
        model: Model,
        choice: DrafterChoice,
        bring: Callable[[str, int, int, str], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> tuple[tuple[str, ...], str | None]:
        """Names of the methods in use, the cheap one first of two, and the path of their weights."""
        name, info = choice.name.replace("-", "_"), model.cache.target.info
        if name == "none":
            return (), None
        weights = str(resolve(choice.weights, bring, cancelled)) if choice.weights else None
        if name not in ("auto", "composite"):
            return (name,), weights
        pool, given = model.cache.drafters, choice.options if weights is None else {}
        rows = [
            row
            for row in model.rows
            if not any(pool.failed(Wanted(row.name, pool.weights.get(row.name), some)) for some in ({}, given))
        ]
        names = discovery.automatic(rows)
        free = {row.name for row in model.rows if row.free}
        if weights is not None:
            method = discovery.accepting(info, weights)
            names = (*(cheap for cheap in names if cheap in free - {method}), method)
        elif name == "auto":
            names = tuple(one for one in names if one in free or model.policy.pays(one))
        elif len(names) < 2:
            raise DrafterError(
                "A composite needs a drafter with weights beside a cheap one, and none fits this model.",
                "Name its weights with --drafter-weights, or use --drafter auto.",
            )
        return names, weights

    def _wanted(
        self, model: Model, name: str, weights: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Wanted:
        """A drafter of the pool; where the user names no weights, those that are found for its method."""
        known_weights = model.cache.drafters.weights
        if weights is None:
            if name not in known_weights:
                known_weights[name] = discovery.weights_for(name, model.cache.target.info)
            weights = known_weights[name]
        return Wanted(name, weights, options or {})

    def _load_drafter(self, model: Model, wanted: Wanted, report: Callable[[str], None]) -> PooledDrafter:
        """Raises DrafterError, ModelError."""
        target, pool = model.cache.target, model.cache.drafters
        row = next((row for row in model.rows if row.name == wanted.name), None)
        if row is not None and row.nbytes:
            while (free := memory.free(str(target.device))) is not None and free < row.nbytes and pool.make_room():
                pass
            share = row.nbytes / target.decoder.weights.nbytes
            model.policy.costs.drafting(wanted.name).expect(share * model.policy.costs.of(1))
        return load_drafter(wanted, target, report)


def _switches(template: ChatTemplate, request: Generate) -> dict[str, Any]:
    return {} if request.think is None else thinking.switches(template.source, request.think)


def _asked(request: Generate) -> Sequence[Message]:
    """The messages that the answer stands behind."""
    messages = request.messages or []
    return messages if request.continues is None else messages[:-1]


def _shown(request: Generate) -> tuple[int, int]:
    """Characters of answer and thought of a message that is gone on with."""
    if request.continues is None or not request.messages:
        return 0, 0
    return len(request.messages[-1].content), len(request.messages[-1].thinking)


def _check(request: Generate) -> None:
    problem = request.sampling.problem()
    if problem:
        raise UsageError(problem, "See `outrider run --help`.")
    if request.continues is not None and (not request.messages or request.messages[-1].role != "assistant"):
        raise UsageError("There is no answer at the end of this chat to go on with.", "Ask something.")
    if request.rule not in RULES:
        raise UsageError(f"--rule {request.rule} is not known.", f"Use {', '.join(RULES)}.")
    check_choice(request.drafter)


def check_choice(choice: DrafterChoice) -> None:
    """Raises UsageError for a draft length or an option that a drafter cannot have, before anything is loaded."""
    _check_tokens(choice.tokens)
    name = choice.name.replace("-", "_")
    if choice.options and name in {entry.name for entry in registry.entries()}:
        registry.check_options(name, choice.options)


def _check_tokens(tokens: int | None) -> None:
    if tokens is not None and not 1 <= tokens <= MOST_DRAFTED:
        raise UsageError(f"--draft-tokens must be from 1 to {MOST_DRAFTED}, not {tokens}.", "8 is a good start.")


def _check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= most_threads():
        raise UsageError(
            f"--threads must be from 1 to {most_threads()} on this machine, not {threads}.",
            "Leave it out: the fastest number is measured.",
        )
