"""One engine of `compare.py`, kept alive: answers lines of JSON on stdin with lines of JSON on stdout until stdin ends.

    python compare_engines.py outrider | transformers | llama SETTINGS

A question is {"mode", "messages", "ids", "eos", "tokens"}; with {"messages"} alone the engine `outrider` tells ids and eos. An
answer is {"text", "tokens", "first", "prefill_s", "decode_s"}: `first` of the tokens were there when the prefill
ended, the others took `decode_s`. Each engine imports only what its environment has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]
LOOKUP = 10  # tokens of a prompt lookup's draft, in transformers and where llama.cpp has a length to set
LOOKUP_MATCH = 3  # tokens that have to match, where llama.cpp's own setting waits for twelve


def outrider(settings: dict[str, Any]) -> Answer:
    """Every drafter in one process, as in `outrider bench`. A mode is the name of a drafter, or plain."""
    from identity import Undisturbed

    from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
    from outrider.core.session.engine import Engine

    choice = ModelChoice(
        model=settings["model"], device="cpu", context=settings["context"], threads=settings["threads"]
    )
    engine = Engine()
    model = engine.load(choice, 1, lambda event: None, lambda: False)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        mode = question.get("mode", "plain")
        weights = settings["draft"] if mode in ("draft_model", "composite") else None
        request = Generate(
            1,
            choice,
            messages=[Message(role, text) for role, text in question["messages"]],
            sampling=Sampling(temperature=0, max_tokens=question.get("tokens")),
            drafter=DrafterChoice(name="none" if mode == "plain" else mode, weights=weights),
        )
        if "mode" not in question:
            return {"ids": engine.prompt_ids(model, request), "eos": sorted(model.tokenizer.eos_ids)}
        engine.forget()
        report = engine.generate(request, lambda event: None, Undisturbed())
        spent = report.timing.prefill_s, report.timing.decode_s
        return told(report.text, len(report.token_ids), 1, spent) | {"passes": report.passes}

    return answer


def transformers(settings: dict[str, Any]) -> Answer:
    """`generate` in bf16 on the dequantised weights. Modes: plain, prompt_lookup, assistant."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """When tokens came, and how many at once; the prompt comes first."""

        def __init__(self) -> None:
            self.came: list[tuple[float, int]] = []

        def put(self, value: Any) -> None:
            self.came.append((time.perf_counter(), int(value.numel())))

        def end(self) -> None:
            pass

    torch.set_num_threads(settings["threads"])
    tokenizer = AutoTokenizer.from_pretrained(settings["folder"])
    load = AutoModelForCausalLM.from_pretrained
    model: Any = load(settings["folder"], dtype=torch.bfloat16)
    assistant = load(settings["draft_folder"], dtype=torch.bfloat16) if settings["draft_folder"] else None
    modes = {
        "plain": {},
        "prompt_lookup": {"prompt_lookup_num_tokens": LOOKUP},
        "assistant": {"assistant_model": assistant},
    }

    def generated(ids: Any, question: dict[str, Any], **options: Any) -> Any:
        eos, mask = question["eos"], torch.ones_like(ids)
        with torch.inference_mode():
            return model.generate(ids, attention_mask=mask, do_sample=False, eos_token_id=eos, **options)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        ids, clock = torch.tensor([question["ids"]]), Clock()
        began = time.perf_counter()
        out = generated(ids, question, streamer=clock, max_new_tokens=question["tokens"], **modes[question["mode"]])
        new = [token for token in out[0, ids.shape[1] :].tolist() if token not in question["eos"]]
        _, (first_at, first), *_, (last_at, _) = [*clock.came, clock.came[-1]]
        if 2 * first > len(new):  # drafts ride with the prompt: where most came so, the prompt is timed by itself
            again = time.perf_counter()
            generated(ids, question, max_new_tokens=1)
            first, first_at = 1, min(last_at, began + time.perf_counter() - again)
        spent = first_at - began, last_at - first_at
        return told(tokenizer.decode(new, skip_special_tokens=True), len(new), first, spent)

    return answer


def llama(settings: dict[str, Any]) -> Answer:
    """llama.cpp's server without HTTP, greedy, on the same file; `settings["mode"]` is fixed when it starts."""
    import xllamacpp

    kinds = xllamacpp.common_speculative_type
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = settings["path"], settings["context"], 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    speculative, mode = params.speculative, settings["mode"]
    modes = {
        "lookup": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
        "ngram_simple": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
        "ngram_map_k": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K,
        "ngram_map_k4v": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V,
        "ngram_mod": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MOD,
        "ngram_cache": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE,
        "draft": kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    }
    if mode != "plain":
        speculative.types = [modes[mode]]
    if mode == "lookup":
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = LOOKUP_MATCH, LOOKUP
    if mode == "draft":
        speculative.draft.mparams.path = settings["draft"]
        threads = speculative.draft.cpuparams, speculative.draft.cpuparams_batch
        threads[0].n_threads = threads[1].n_threads = settings["threads"]
    server = xllamacpp.Server(params)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        asked = {"prompt": question["ids"], "max_tokens": question["tokens"], "temperature": 0, "cache_prompt": False}
        made: Any = server.handle_completions(asked)
        found = json.loads(made) if isinstance(made, str | bytes) else made
        timings, choice = found["timings"], found["choices"][0]
        tokens = timings["predicted_n"] - (choice["finish_reason"] == "stop")  # the EOS is counted there
        return told(choice["text"], tokens, 1, (timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3))

    return answer


def told(text: str, tokens: int, first: int, spent: tuple[float, float]) -> dict[str, Any]:
    """An answer as it travels."""
    return {"text": text, "tokens": tokens, "first": first, "prefill_s": spent[0], "decode_s": spent[1]}


def main(kind: str, settings: str) -> None:
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # whatever prints does not come between
        answer = {"outrider": outrider, "transformers": transformers, "llama": llama}[kind](json.loads(settings))
        print(json.dumps({"ready": True}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
