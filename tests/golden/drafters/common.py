"""Helpers shared by the generators: targets, data, greedy references, file writing.

Reference implementations are imported from folders named by environment variables (see README.md); nothing of them is
copied here. Everything runs in float32 on the CPU.
"""

import json
import os
import pydoc_data.topics
import sys

import torch
from safetensors.torch import save_file

torch.set_num_threads(int(os.environ.get("GOLDEN_THREADS", "1")))
ROOT = os.path.join(os.environ["GOLDEN"], "golden_drafters")
GOLDEN = os.path.join(os.environ["GOLDEN"], "golden")
PROMPT, NEW = 24, 64


def ref(name):
    """Put the reference checkout named by the environment variable REF_<name> on the import path."""
    path = os.environ[f"REF_{name}"]
    if path not in sys.path:
        sys.path.insert(0, path)
    return path


def corpus():
    """Bytes of the Python documentation topics that ship with Python (vocabulary = byte values)."""
    t = pydoc_data.topics.topics
    text = "\n".join(t[k] for k in sorted(t))
    return torch.tensor(list(text.encode("latin-1", "ignore")), dtype=torch.long)


def batch(data, n, length, gen):
    at = torch.randint(0, len(data) - length - 1, (n,), generator=gen)
    return torch.stack([data[i : i + length] for i in at])


def target_dir(name):
    d = os.path.join(ROOT, name)
    return d if os.path.isdir(d) else os.path.join(GOLDEN, name)


def load_target(name):
    """The target with transformers, float32, eager attention; works with new (5.x) and old (4.x) transformers."""
    import transformers

    new = int(transformers.__version__.split(".")[0]) >= 5
    kw = {"dtype": torch.float32} if new else {"torch_dtype": torch.float32}
    if new:
        kw["experts_implementation"] = "eager"
    m = transformers.AutoModelForCausalLM.from_pretrained(target_dir(name), attn_implementation="eager", **kw)
    return m.eval()


@torch.no_grad()
def states(model, ids):
    """(hs, z, logits): hs[k] = residual after k layers (hs[0] = embeddings), z = after the final norm."""
    hs, hooks = {}, []
    base = model.model

    def first(m, a, k):
        hs[0] = (a[0] if a else k["hidden_states"]).detach()

    hooks.append(base.layers[0].register_forward_pre_hook(first, with_kwargs=True))
    for i, layer in enumerate(base.layers):
        hooks.append(
            layer.register_forward_hook(
                lambda m, a, o, i=i: hs.__setitem__(i + 1, (o[0] if isinstance(o, tuple) else o).detach())
            )
        )
    z = {}
    hooks.append(base.norm.register_forward_hook(lambda m, a, o: z.__setitem__(0, o.detach())))
    logits = model(input_ids=ids, use_cache=False).logits
    for h in hooks:
        h.remove()
    return [hs[i] for i in range(len(base.layers) + 1)], z[0], logits


@torch.no_grad()
def greedy(model, prompt, new=NEW):
    """Greedy continuation by full recomputation, and the smallest top-1/top-2 logit gap on the way."""
    ids, margin = prompt.clone(), float("inf")
    for _ in range(new):
        lg = model(input_ids=ids, use_cache=False).logits[:, -1]
        top = lg.topk(2, -1).values
        margin = min(margin, float((top[:, 0] - top[:, 1]).min()))
        ids = torch.cat([ids, lg.argmax(-1, keepdim=True)], -1)
    return ids[:, prompt.shape[1] :], margin


def pick_prompts(model, pool, n=3, new=NEW + 8, min_margin=2e-3):
    """The first n prompts of the pool whose greedy path never comes near a tie; (prompts, continuations, margins)."""
    out = []
    for p in pool:
        g, m = greedy(model, p[None], new)
        if m >= min_margin and len(set(g[0].tolist())) > 4:
            out.append((p[None], g, m))
        if len(out) == n:
            break
    if len(out) < n:
        raise RuntimeError("not enough prompts with a clear margin")
    return [o[0] for o in out], [o[1] for o in out], [o[2] for o in out]


def self_data(model, prompts, new=80, temperature=0.0, gen=None):
    """The target's own continuations of a batch of prompts (training data for drafters)."""
    ids = prompts
    with torch.no_grad():
        for _ in range(new):
            lg = model(input_ids=ids, use_cache=False).logits[:, -1]
            if temperature:
                nxt = torch.multinomial(torch.softmax(lg / temperature, -1), 1, generator=gen)
            else:
                nxt = lg.argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], -1)
    return ids


def prompt_pool(kind, n=60, seed=7):
    gen = torch.Generator().manual_seed(seed)
    if kind == "text":
        return batch(corpus(), n, PROMPT, gen)
    return torch.randint(3, 256, (n, PROMPT), generator=gen)


class Golden:
    """Collects tensors (-> golden.safetensors) and plain facts (-> golden.json) of one folder."""

    def __init__(self, name, target, evidence, reference):
        self.dir = os.path.join(ROOT, name)
        os.makedirs(self.dir, exist_ok=True)
        self.t, self.j = {}, {"target": target, "evidence": evidence, "reference": reference}

    def add(self, key, value):
        value = value.detach()
        if value.dtype == torch.bool or value.dtype == torch.int32:
            value = value.to(torch.int64)
        self.t[key] = value.contiguous().clone()

    def write(self, config, weights, extra_pair=None, weights_name="model.safetensors", bin_name=None, pickled=None):
        d = self.dir
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        if weights is not None:
            weights = {k: v.detach().contiguous().clone() for k, v in weights.items()}
            save_file(weights, os.path.join(d, weights_name), metadata={"format": "pt"})
            if bin_name:
                torch.save(weights if pickled is None else pickled, os.path.join(d, bin_name))
        rel = self.j["target"]
        inside = os.path.isdir(os.path.join(ROOT, rel)) or rel == os.path.basename(d)
        with open(os.path.join(d, "pair.json"), "w") as f:
            json.dump(
                {"target": rel, "target_path": f"../{rel}" if inside else f"../../golden/{rel}", **(extra_pair or {})},
                f,
                indent=1,
            )
            f.write("\n")
        save_file(self.t, os.path.join(d, "golden.safetensors"))
        with open(os.path.join(d, "golden.json"), "w") as f:
            f.write(dumps(self.j) + "\n")
        size = sum(os.path.getsize(os.path.join(d, x)) for x in os.listdir(d))
        print(
            f"{os.path.basename(d)}: {size / 1e6:.2f} MB, rounds",
            [[r["accepted"] for r in p["rounds"]] for p in self.j.get("prompts", []) if "rounds" in p],
            flush=True,
        )


def dumps(o, ind=0):
    """JSON with short lists on one line."""
    pad = " " * ind
    if isinstance(o, dict):
        if not o:
            return "{}"
        return "{\n" + ",\n".join(f"{pad} {json.dumps(k)}: {dumps(v, ind + 1)}" for k, v in o.items()) + f"\n{pad}}}"
    if isinstance(o, list) and any(isinstance(x, dict) for x in o):
        return "[\n" + ",\n".join(f"{pad} {dumps(x, ind + 1)}" for x in o) + f"\n{pad}]"
    return json.dumps(o)
