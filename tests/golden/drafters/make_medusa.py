"""medusa: five heads on target_llama8 in the heads-only file format, run by the original MedusaModel.

python make_medusa.py train
REF_MEDUSA=<Medusa checkout> python make_medusa.py golden    (transformers 4.53)
"""

import json
import os
import sys
import tempfile

import mini
import torch
import torch.nn.functional as F
from common import NEW, ROOT, Golden, load_target, ref
from make_eagle import TARGET, prompts_file, reference_target, train_data
from safetensors.torch import load_file, save_file

HEADS = 5
# our own small tree: rank tuples, one rank per head
SMALL = [
    [0],
    [1],
    [2],
    [3],
    [0, 0],
    [0, 1],
    [1, 0],
    [2, 0],
    [0, 2],
    [0, 0, 0],
    [0, 1, 0],
    [1, 0, 0],
    [0, 0, 1],
    [0, 0, 0, 0],
    [0, 0, 0, 1],
    [0, 0, 0, 0, 0],
]
DIR = os.path.join(ROOT, "medusa")


def heads(p, z):
    return [
        F.linear(z + F.silu(F.linear(z, p[f"{k}.0.linear.weight"], p[f"{k}.0.linear.bias"])), p[f"{k}.1.weight"])
        for k in range(HEADS)
    ]


def train():
    model = load_target(TARGET)
    s = load_file(prompts_file())
    own = torch.cat([s["prompts"][:2], s["greedy"][:2]], -1)[:, :96]
    ids, hs, z, logits = train_data(model, own=[F.pad(own, (0, 96 - own.shape[1]), value=32)] * 2)
    shapes = {}
    for k in range(HEADS):
        shapes |= {f"{k}.0.linear.weight": (64, 64), f"{k}.0.linear.bias": (64,), f"{k}.1.weight": (256, 64)}
    p = mini.init(shapes, 51)
    for k in range(HEADS):
        p[f"{k}.1.weight"] = model.lm_head.weight.detach().clone()
    gen = torch.Generator().manual_seed(6)

    def loss(p, i):
        b = torch.randint(0, len(ids), (16,), generator=gen)
        total = 0
        for k, lg in enumerate(heads(p, z[b])):
            t = torch.softmax(logits[b][:, 1 + k :], -1)
            total = total - (t * torch.log_softmax(lg[:, : t.shape[1]], -1)).sum(-1).mean()
        return total

    p = mini.train(p, loss, 400, lr=5e-3)
    os.makedirs(DIR, exist_ok=True)
    save_file(p, os.path.join(DIR, "medusa_lm_head.safetensors"), metadata={"format": "pt"})
    torch.save(p, os.path.join(DIR, "medusa_lm_head.pt"))


def golden():
    ref("MEDUSA")
    import transformers.utils

    transformers.utils.is_flash_attn_available = lambda: False  # a name newer transformers dropped
    import medusa.model.medusa_choices as choices
    import medusa.model.medusa_model as mod

    class Tok:
        eos_token_id = -7

        @classmethod
        def from_pretrained(cls, *a, **k):
            return cls()

        def decode(self, ids, **k):
            return ids.tolist()

    mod.AutoTokenizer = Tok
    s = load_file(prompts_file())
    P, G = s["prompts"], s["greedy"]
    p = load_file(os.path.join(DIR, "medusa_lm_head.safetensors"))
    g = Golden(
        "medusa",
        TARGET,
        "original reference implementation",
        "FasterDecoding/Medusa e2a5d20c048a9b0a4092e6933c34313687422518 (medusa/model/medusa_model.py, utils.py), "
        "transformers 4.53.3, torch 2.13.0 CPU fp32",
    )
    with tempfile.TemporaryDirectory() as tmp, tempfile.TemporaryDirectory() as mdir:
        reference_target(tmp)
        cfg = {
            "medusa_num_heads": 2,
            "medusa_num_layers": 1,
            "base_model_name_or_path": tmp,
            "transformers_version": "4.31.0",
        }
        json.dump(cfg, open(os.path.join(mdir, "config.json"), "w"))
        torch.save(p, os.path.join(mdir, "medusa_lm_head.pt"))
        model = mod.MedusaModel.from_pretrained(mdir, torch_dtype=torch.float32).eval()
        log = []
        o_cand, o_eval, o_init = mod.generate_candidates, mod.evaluate_posterior, mod.initialize_medusa

        def cand(medusa_logits, logits, *a, **k):
            out = o_cand(medusa_logits, logits, *a, **k)
            log.append({"heads": medusa_logits.clone(), "tree": out[1].clone(), "cand": out[0].clone()})
            return out

        def evaluate(*a, **k):
            out = o_eval(*a, **k)
            log[-1]["accept"] = int(out[1])
            return out

        mod.generate_candidates, mod.evaluate_posterior = cand, evaluate
        g.j |= {"state_fed": "z (after the final norm)", "small_choices": SMALL, "temperature": 0.0, "prompts": []}
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i : i + 1])
            g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
            row = {}
            for tag, ch in (("rounds", SMALL), ("rounds_mc_sim_7b_63", choices.mc_sim_7b_63)):
                log.clear()
                if hasattr(model, "past_key_values"):
                    del model.past_key_values
                got = []
                for step in model.medusa_generate(P[i : i + 1], temperature=0.0, max_steps=200, medusa_choices=ch):
                    got = step["text"]
                    if len(got) >= NEW + 1:
                        break
                assert got[:NEW] == G[i, :NEW].tolist()[: len(got)], "not lossless"
                b = model.medusa_buffers
                if i == 0:
                    short = "small." if tag == "rounds" else "mc_sim_7b_63."
                    m = b["medusa_attn_mask"][0, 0].bool()
                    g.add(short + "mask", m)
                    g.add(short + "positions", b["medusa_position_ids"])
                    g.add(short + "tree_indices", b["tree_indices"])
                    g.add(short + "retrieve_indices", b["retrieve_indices"])
                    g.j[short + "parents"] = [-1] + [max(j for j in range(t) if m[t, j]) for t in range(1, m.shape[0])]
                rows, committed = [], P.shape[1]
                for k, e in enumerate(log):
                    t = e["tree"][0].tolist()
                    r = {"committed": committed, "root": t[0]}
                    if tag == "rounds" or k < 2:
                        r["draft"] = t[1:]
                    r["accepted"] = e["accept"]
                    if tag == "rounds" and (k < 3):
                        r["tensors"] = f"p{i}.r{k}."
                        g.add(f"p{i}.r{k}.head_logits", e["heads"][:, 0, -1])
                    rows.append(r)
                    committed += e["accept"] + 1
                row[tag] = rows
            g.j["prompts"].append(row)
            mod.reset_medusa_mode(model)
            with torch.inference_mode():
                ml, outs, orig = model(P[i : i + 1], output_orig=True, medusa_forward=True)
                z = outs[0].clone()
            g.add(f"p{i}.prefill.state", z.clone())
            g.add(f"p{i}.prefill.head_logits", ml[:, 0].clone())
            err = max(float((a - b2).abs().max()) for a, b2 in zip(heads(p, z), ml))
            print("independent - reference", err)
            assert err < 1e-3
    cfg["base_model_name_or_path"] = TARGET
    g.write(cfg, p, weights_name="medusa_lm_head.safetensors", bin_name="medusa_lm_head.pt")


if __name__ == "__main__":
    {"train": train, "golden": golden}[sys.argv[1]]()
