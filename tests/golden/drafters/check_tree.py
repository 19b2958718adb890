"""Rebuilds every EAGLE-2 tree of eagle3 and eagle1 from the format document (mini.Eagle, a per-path cache, no batching)
and compares tokens and parents with the reference's.

    python check_tree.py
"""

import json
import os

import mini
import torch
import torch.nn.functional as F
from common import ROOT, load_target, states
from make_eagle import E1, E3, TARGET
from safetensors.torch import load_file

TOTAL, DEPTH, TOPK = 16, 4, 4


def tree(eng, p, embed, head, d2t, tokens, state):
    T = tokens.shape[1]
    f, cache = eng.step(
        p,
        F.embedding(tokens, embed),
        eng.project(p, state),
        torch.arange(T),
        [],
        torch.ones(T, T, dtype=torch.bool).tril(),
    )
    base = cache[0]

    def children(feature):
        lp = torch.log_softmax(eng.logits(p, feature, head)[0, 0], -1).topk(TOPK)
        ids = lp.indices + (d2t[lp.indices] if d2t is not None else 0)
        return list(zip(ids.tolist(), lp.values.tolist()))

    # node: parent, token, score, feature fed to its own row, rows (k, v) of its ancestors
    nodes = []
    root_f = f[:, -1:]
    for t, s in children(root_f):
        nodes.append(dict(parent=-1, token=t, score=s, g=root_f, rows=[], depth=1))
    frontier = list(range(TOPK))
    for level in range(DEPTH):
        made = []
        for n in frontier:
            x = nodes[n]
            res, u = eng.inputs(p, F.embedding(torch.tensor([[x["token"]]]), embed), x["g"])
            q, k, v = eng.qkv(p, u, torch.tensor([T + level]))
            rows = x["rows"] + [(k, v)]
            K, V = (torch.cat([base[i]] + [r[i] for r in rows], -2) for i in (0, 1))
            out = eng.finish(p, res, mini.heads_attn(q, K, V, torch.ones(1, K.shape[-2], dtype=torch.bool)))
            for t, s in children(out):
                made.append(len(nodes))
                nodes.append(dict(parent=n, token=t, score=x["score"] + s, g=out, rows=rows, depth=x["depth"] + 1))
        frontier = sorted(sorted(made, key=lambda i: -nodes[i]["score"])[:TOPK], key=lambda i: -nodes[i]["score"])
    best = sorted(sorted(range(len(nodes)), key=lambda i: -nodes[i]["score"])[: TOTAL - 1])
    place = {n: i + 1 for i, n in enumerate(best)} | {-1: 0}
    return [nodes[n]["token"] for n in best], [place[nodes[n]["parent"]] for n in best]


model = load_target(TARGET)
embed, head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
for name, eng in (("eagle3", E3), ("eagle1", E1)):
    d = os.path.join(ROOT, name)
    p = load_file(os.path.join(d, "model.safetensors"))
    j, t = json.load(open(os.path.join(d, "golden.json"))), load_file(os.path.join(d, "golden.safetensors"))
    same = n = 0
    with torch.no_grad():
        for i, pr in enumerate(j["prompts"]):
            seq = torch.cat([t[f"p{i}.prompt_ids"], t[f"p{i}.greedy_ids"]], -1)
            hs, z, _ = states(model, seq)
            st = torch.cat([hs[2], hs[4], hs[5]], -1) if eng.v == 3 else z
            for r in pr["tree_rounds"]:
                c = r["committed"]
                if c >= seq.shape[1]:
                    continue
                tok, par = tree(eng, p, embed, head, p.get("d2t"), seq[:, 1 : c + 1], st[:, :c])
                n += 1
                same += tok == r["draft"] and par == r["parents"]
    print(name, "trees rebuilt equal:", same, "of", n)
