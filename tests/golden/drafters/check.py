"""Checks the folders against each other with transformers alone (no reference implementation needed):

    python check.py [folder ...]

* the target's greedy continuation (recomputed here) is the recorded one, and its smallest logit gap is shown; so is the smallest gap of
  the recorded draft logits
* every recorded accepted length follows from the recorded drafts and that continuation (chains and trees)
* the recorded states are the target's states
* the folder is smaller than 2 MB
"""

import json
import os
import sys

import torch
from common import ROOT, greedy, load_target, states
from safetensors.torch import load_file

STATE = {
    "eagle3": lambda hs, z: torch.cat([hs[2], hs[4], hs[5]], -1),
    "eagle1": lambda hs, z: z,
    "medusa": lambda hs, z: z,
    "eagle3_specforge": lambda hs, z: torch.cat([hs[2], hs[4], hs[5]], -1),
    "eagle3_speculators": lambda hs, z: torch.cat([hs[2], hs[4], hs[5]], -1),
    "eagle31_speculators": lambda hs, z: torch.cat([hs[2], hs[4], hs[8]], -1),
}
STATE["gemma4_assistant"] = lambda hs, z: z
for n in ("dflash", "dflash2", "dspark", "dflash_deepspec", "dflash_speculators", "dspark_speculators"):
    STATE[n] = lambda hs, z: torch.cat([hs[2], hs[4], hs[6]], -1)
CACHE = {}


def target(name):
    if name not in CACHE:
        CACHE.clear()
        CACHE[name] = load_target(name)
    return CACHE[name]


def walk(row, parents, seq):
    at, n = 0, 0
    pos = row["committed"]
    kids = {}
    for node, (p, t) in enumerate(zip(parents, row["draft"]), 1):
        kids.setdefault(p, {}).setdefault(t, node)
    while pos + 1 < len(seq) and seq[pos + 1] in kids.get(at, {}):
        at, n, pos = kids[at][seq[pos + 1]], n + 1, pos + 1
    return n


def check(name):
    d = os.path.join(ROOT, name)
    j, t = json.load(open(os.path.join(d, "golden.json"))), load_file(os.path.join(d, "golden.safetensors"))
    model = target("qwen2" if name == "mtp_mimo" else j["target"])
    state = STATE.get(name, (lambda hs, z: z) if name.startswith("mtp_") else None)
    worst, gap, dgap, notes = 0.0, float("inf"), float("inf"), []
    for i, p in enumerate(j["prompts"]):
        prompt, want = t[f"p{i}.prompt_ids"], t[f"p{i}.greedy_ids"]
        got, m = greedy(model, prompt, want.shape[1] + 8)
        gap = min(gap, m)
        assert torch.equal(got[:, : want.shape[1]], want), f"{name} p{i}: greedy differs"
        seq = torch.cat([prompt, got], -1)
        full = seq[0].tolist()
        hs, z, _ = states(model, seq)
        for key in ("rounds", "tree_rounds", "rounds_mc_sim_7b_63", "rounds_transformers"):
            pos = None
            for k, r in enumerate(p.get(key, [])):
                if pos is not None:
                    assert r["committed"] == pos, (name, key, k, r["committed"], pos)
                root = r.get("root", r.get("anchor"))
                if r["committed"] < len(full):
                    assert root == full[r["committed"]], (name, key, k)
                pos = r["committed"] + r["accepted"] + 1
                if "draft" not in r:
                    continue
                tree = r.get("parents") or (
                    j.get("small.parents")[1:] if key == "rounds" and name == "medusa" else None
                )
                if key == "rounds_mc_sim_7b_63":
                    tree = j["mc_sim_7b_63.parents"][1:]
                n = walk(r, tree or list(range(len(r["draft"]))), full)
                cut = len(full) - 1 - r["committed"]
                assert n == min(r["accepted"], cut), (name, key, k, n, r)
        if state is not None:
            s = state(hs, z)
            if f"p{i}.prefill.state" in t:
                x = t[f"p{i}.prefill.state"]
                worst = max(worst, float((s[:, : x.shape[1]] - x).abs().max()))
            for r in p["rounds"] + p.get("tree_rounds", []):
                lg = t.get(r.get("tensors", "-") + "logits")
                if lg is not None:
                    top = lg.reshape(-1, lg.shape[-1]).topk(2, -1).values
                    dgap = min(dgap, float((top[:, 0] - top[:, 1]).min()))
                x = t.get(r.get("tensors", "-") + "state")
                if x is not None:
                    end = r["committed"]
                    worst = max(worst, float((s[:, end - x.shape[1] : end] - x).abs().max()))
        notes.append([r["accepted"] for r in p["rounds"]])
    size = sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d))
    assert size < 2e6 and worst < 1e-3, (name, size, worst)
    acc = [a for n in notes for a in n]
    print(
        f"{name:22s} ok  {size / 1e6:.2f} MB  target gap {gap:.4f}  draft gap {dgap:.4f}  state error {worst:.1e}  "
        f"mean accepted {sum(acc) / len(acc):.2f} (0..{max(acc)})",
        flush=True,
    )


names = sys.argv[1:] or sorted(n for n in os.listdir(ROOT) if os.path.exists(os.path.join(ROOT, n, "golden.json")))
names.sort(key=lambda n: json.load(open(os.path.join(ROOT, n, "golden.json")))["target"])
for n in names:
    check(n)
