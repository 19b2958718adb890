"""One measurement of llama.cpp through xllamacpp (needs nothing else): plain greedy tokens per second on a GGUF, as JSON.

python llama_speed.py MODEL.gguf THREADS TOKENS
"""

from __future__ import annotations

import json
import sys

PROMPT = "The history of the bicycle begins in the early nineteenth century, when"


def main(path: str, threads: int, tokens: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, 2048, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    for count in (8, tokens):  # the first warms up
        made = server.handle_completions(
            {"prompt": PROMPT, "max_tokens": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        )
        found = json.loads(made) if isinstance(made, str | bytes) else made
    print(json.dumps({"tokens_per_second": found["timings"]["predicted_per_second"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
