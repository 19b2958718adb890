"""Two 8-layer targets (llama, qwen3) trained for a short while as byte language models, so that drafts can succeed.

python make_targets.py [name ...]
"""

import json
import os
import sys

import torch
from common import ROOT, batch, corpus, greedy, prompt_pool, states
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

BASE = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    rms_norm_eps=1e-5,
    initializer_range=0.1,
)
TARGETS = {
    "target_llama8": (
        "llama",
        dict(tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        {"rope_theta": 500000.0, "rope_scaling": None},
        1,
    ),
    "target_qwen3_8": (
        "qwen3",
        dict(tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        {"rope_theta": 1000000.0, "rope_scaling": None},
        2,
    ),
}


def build(name, steps=int(os.environ.get("STEPS", "300"))):
    kind, kw, hub, seed = TARGETS[name]
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    cfg = AutoConfig.for_model(kind, **{**BASE, **kw})
    model = AutoModelForCausalLM.from_config(cfg, attn_implementation="sdpa").float()
    for n, p in model.named_parameters():
        if "norm" in n:
            p.data = 1 + 0.3 * torch.randn(p.shape, generator=gen)
    data = corpus()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        for g in opt.param_groups:
            g["lr"] = 4e-3 * min(1, (step + 1) / 40) * (1 - 0.9 * step / steps)
        x = batch(data, 10, 65, gen)
        logits = model(input_ids=x[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 25 == 0:
            print(name, step, round(loss.item(), 3), flush=True)
    model.eval()
    d = os.path.join(ROOT, name)
    os.makedirs(d, exist_ok=True)
    model.save_pretrained(d)
    for f in os.listdir(d):
        if f == "generation_config.json":
            os.remove(os.path.join(d, f))
    sd = load_file(os.path.join(d, "model.safetensors"))
    save_file(sd, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    c = json.load(open(os.path.join(d, "config.json")))
    h = {k: v for k, v in c.items() if k not in ("rope_parameters", "layer_types", "transformers_version")}
    h.update(hub)
    json.dump(h, open(os.path.join(d, "config_hub.json"), "w"), indent=1)
    out = {}
    ids = batch(data, 1, 48, gen)
    hs, z, logits = states(model, ids)
    out["input_ids"], out["logits"], out["h.final"] = ids, logits, z
    for i, x in enumerate(hs):
        out[f"h.{i}"] = x
    p = prompt_pool("text")[:1]
    out["greedy.prompt_ids"] = p
    out["greedy.new_ids"], m = greedy(model, p)
    print(name, "margin", m, bytes(p[0].tolist()), bytes(out["greedy.new_ids"][0].tolist()))
    save_file({k: v.contiguous().clone() for k, v in out.items()}, os.path.join(d, "golden.safetensors"))


for n in sys.argv[1:] or TARGETS:
    build(n)
