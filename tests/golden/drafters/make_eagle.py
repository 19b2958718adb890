"""eagle3 and eagle1: train the tiny drafters, then run SafeAILab's EaModel on them.

python make_eagle.py train            any recent transformers
REF_EAGLE=<EAGLE checkout> python make_eagle.py golden     transformers 4.53 (what the reference imports)
"""

import json
import os
import shutil
import sys
import tempfile

import mini
import torch
import torch.nn.functional as F
from common import NEW, ROOT, Golden, load_target, pick_prompts, prompt_pool, ref, self_data, states, target_dir
from safetensors.torch import load_file, save_file

TARGET = "target_llama8"
VD, STEPS = 96, int(os.environ.get("STEPS", "260"))
CFG3 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "max_position_embeddings": 96,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "vocab_size": 256,
    "draft_vocab_size": VD,
}
CFG1 = {k: v for k, v in CFG3.items() if k not in ("draft_vocab_size", "num_key_value_heads")} | {
    "intermediate_size": 112
}
E3 = mini.Eagle(3, 16, 10000.0, 1e-5, "midlayer.")
E1 = mini.Eagle(1, 16, 10000.0, 1e-5, "layers.0.")


def vocab_map(ids, vd=VD):
    count = torch.bincount(ids.flatten(), minlength=256).float() - torch.arange(256) * 1e-6
    keep = count.topk(vd).indices.sort().values
    t2d = torch.zeros(256, dtype=torch.bool)
    t2d[keep] = True
    return keep - torch.arange(vd), t2d


def train_data(model, n=40, own=()):
    gen = torch.Generator().manual_seed(11)
    pool = prompt_pool("text", n, seed=101)
    ids = torch.cat([self_data(model, pool, 72), self_data(model, pool[: n // 2], 72, 0.7, gen)] + list(own))
    hs, z, logits = states(model, ids)
    return ids, hs, z, logits


def prompts_file():
    return os.path.join(ROOT, TARGET, "prompts.safetensors")


def train():
    model = load_target(TARGET)
    P, G, M = pick_prompts(model, prompt_pool("text"))
    save_file({"prompts": torch.cat(P), "greedy": torch.cat(G)}, prompts_file())
    print("margins", M, [bytes(g[0].tolist()) for g in G])
    own = [torch.cat([torch.cat(P[:1]), torch.cat(G[:1])], -1)]  # only the first golden prompt is trained on
    own = [F.pad(o, (0, 96 - o.shape[1]), value=32)[:, :96] for o in own]
    ids, hs, z, logits = train_data(model, own=own)
    embed, head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    d2t, t2d = vocab_map(ids)
    aux = torch.cat([hs[2], hs[4], hs[5]], -1)
    keep = torch.arange(VD) + d2t
    gen = torch.Generator().manual_seed(5)

    def loss(draft, state, head_, v3):
        def fn(p, i):
            b = torch.randint(0, len(ids), (10,), generator=gen)
            T = 4
            out = draft.unroll(p, embed, ids[b], state[b], T, head_)
            total = 0
            for s, lg in enumerate(out):
                teacher = logits[b][:, 1 + s : 1 + s + lg.shape[1]]
                if v3:
                    teacher = teacher[..., keep]
                total = total + 0.8**s * -(torch.softmax(teacher, -1) * torch.log_softmax(lg, -1)).sum(-1).mean()
            return total

        return fn

    p3 = mini.init(E3.shapes(64, 4, 2, 80, VD), 31)
    p3["lm_head.weight"] = head[keep] + 0.05 * p3["lm_head.weight"]
    p3 = mini.train(p3, loss(E3, aux, None, True), STEPS)
    p3["d2t"], p3["t2d"] = d2t, t2d
    p1 = mini.init(E1.shapes(64, 4, 4, 112, bias=True), 32)
    p1 = mini.train(p1, loss(E1, z, head, False), STEPS)
    p1["embed_tokens.weight"] = embed.clone()
    for n, p, c in (("eagle3", p3, CFG3), ("eagle1", p1, CFG1)):
        d = os.path.join(ROOT, n)
        os.makedirs(d, exist_ok=True)
        save_file({k: v.contiguous() for k, v in p.items()}, os.path.join(d, "model.safetensors"))
        torch.save({k: v.contiguous() for k, v in p.items()}, os.path.join(d, "pytorch_model.bin"))
        json.dump(c, open(os.path.join(d, "config.json"), "w"), indent=1)


def reference_target(tmp):
    """The target folder as the reference wants it: old-style config and an index file."""
    src = target_dir(TARGET)
    shutil.copy(os.path.join(src, "config_hub.json"), os.path.join(tmp, "config.json"))
    shutil.copy(os.path.join(src, "model.safetensors"), tmp)
    names = load_file(os.path.join(src, "model.safetensors"))
    json.dump(
        {"weight_map": {k: "model.safetensors" for k in names}},
        open(os.path.join(tmp, "model.safetensors.index.json"), "w"),
    )


class Rec:
    """Runs the reference generation and records what enters and leaves its drafter."""

    def __init__(self, ea, mod):
        self.ea, self.rounds, self.accepts, self.logits = ea, [], [], []
        layer = ea.ea_layer
        self.orig, self.orig_eval = layer.topK_genrate, mod.evaluate_posterior
        rec = self

        def topk(hidden, input_ids, head, logits_processor):
            rec.logits.append([])
            out = rec.orig(hidden, input_ids, head, logits_processor)
            rec.rounds.append(
                dict(
                    hidden=hidden.clone(),
                    ids=input_ids.clone(),
                    tokens=out[0],
                    retrieve=out[1],
                    mask=out[2],
                    pos=out[3],
                )
            )
            return out

        def evaluate(*a):
            out = rec.orig_eval(*a)
            rec.accepts.append(int(out[1]))
            return out

        layer.topK_genrate = topk
        mod.evaluate_posterior = evaluate
        self.mod = mod
        head = layer.lm_head if ea.use_eagle3 else ea.base_model.lm_head
        self.hook = head.register_forward_hook(self._head)

    def _head(self, m, a, o):
        # the drafter calls its head on [1, H] or [k, H]; the target calls it on [1, T, H]
        if a[0].dim() == 2:
            self.logits[-1].append(o.detach().clone())

    def close(self):
        del self.ea.ea_layer.topK_genrate
        self.mod.evaluate_posterior = self.orig_eval
        self.hook.remove()


def golden():
    ref("EAGLE")
    import eagle.model.ea_model as mod

    class Tok:
        eos_token_id = -7

        @classmethod
        def from_pretrained(cls, *a, **k):
            return cls()

    mod.AutoTokenizer = Tok
    saved = load_file(prompts_file())
    P, G = saved["prompts"], saved["greedy"]
    with tempfile.TemporaryDirectory() as tmp:
        reference_target(tmp)
        for name, v in (("eagle3", 3), ("eagle1", 1)):
            d = os.path.join(ROOT, name)
            sd = load_file(os.path.join(d, "model.safetensors"))
            cfg = json.load(open(os.path.join(d, "config.json")))
            g = Golden(
                name,
                TARGET,
                "original reference implementation",
                "SafeAILab/EAGLE cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b (eagle/model/ea_model.py, "
                + ("cnets.py" if v == 3 else "cnets1.py")
                + "), transformers 4.53.3, torch 2.13.0 CPU fp32",
            )
            g.j["state_fed"] = "concat(hs[2], hs[4], hs[5])" if v == 3 else "z (after the final norm)"
            g.j["tree_parameters"] = {"total_token": 16, "depth": 4, "top_k": 4}
            g.j["chain_parameters"] = {"total_token": 6, "depth": 4, "top_k": 1, "drafts_per_round": 5}
            g.j["prompts"] = []
            for mode, kw in (
                ("chain", dict(total_token=6, depth=4, top_k=1)),
                ("tree", dict(total_token=16, depth=4, top_k=4)),
            ):
                ea = mod.EaModel.from_pretrained(
                    use_eagle3=v == 3, base_model_path=tmp, ea_model_path=d, torch_dtype=torch.float32, **kw
                )
                ea.eval()
                for i in range(len(P)):
                    rec = Rec(ea, mod)
                    out = ea.eagenerate(P[i : i + 1], max_new_tokens=NEW, max_length=256)
                    rec.close()
                    new = out[0, P.shape[1] :]
                    assert torch.equal(new[:NEW], G[i, :NEW]), "the reference is not lossless here"
                    if mode == "chain":
                        g.add(f"p{i}.prompt_ids", P[i : i + 1])
                        g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
                        with torch.no_grad():
                            ea.ea_layer.reset()
                            r = rec.rounds[0]
                            f, _ = ea.ea_layer(r["hidden"], input_ids=r["ids"][:, 1:], use_cache=True)
                            lg = ea.ea_layer.lm_head(ea.ea_layer.norm(f)) if v == 3 else ea.base_model.lm_head(f)
                        g.add(f"p{i}.prefill.input_ids", r["ids"][:, 1:])
                        g.add(f"p{i}.prefill.state", r["hidden"])
                        g.add(f"p{i}.prefill.feature", f)
                        g.add(f"p{i}.prefill.logits", lg)
                        m = E3 if v == 3 else E1
                        emb = ea.ea_layer.embed_tokens.weight
                        gg = F.linear(r["hidden"], sd["fc.weight"]) if v == 3 else r["hidden"]
                        T = gg.shape[1]
                        mf, _ = m.step(
                            sd,
                            F.embedding(r["ids"][:, 1:], emb),
                            gg,
                            torch.arange(T),
                            [],
                            torch.ones(T, T, dtype=torch.bool).tril(),
                        )
                        ml = m.logits(sd, mf, ea.base_model.lm_head.weight)
                        print(name, "independent - reference", float((ml - lg).abs().max()))
                        assert (ml - lg).abs().max() < 1e-3
                        g.j["prompts"].append({"rounds": [], "tree_rounds": []})
                    rows = g.j["prompts"][i]["rounds" if mode == "chain" else "tree_rounds"]
                    shown = 0
                    for k, a in enumerate(rec.accepts):
                        r = rec.rounds[k]
                        tok = r["tokens"][0].tolist()
                        mask = r["mask"][0, 0].bool()
                        par = [-1] + [max(j for j in range(t) if mask[t, j]) for t in range(1, len(tok))]
                        row = {"committed": r["ids"].shape[1] - 1, "root": tok[0], "draft": tok[1:]}
                        if mode == "tree":
                            row["parents"] = par[1:]
                        row["accepted"] = a
                        if k == 0 or (shown < 4 and rec.accepts[k - 1] < 5) or (mode == "tree" and k < 3):
                            shown += 1
                            pre = f"p{i}.{mode}.r{k}."
                            row["tensors"] = pre
                            g.add(pre + "state", r["hidden"])
                            g.add(pre + "input_ids", r["ids"][:, -r["hidden"].shape[1] :])
                            if mode == "chain":
                                g.add(pre + "logits", torch.cat(rec.logits[k]))
                            else:
                                g.add(pre + "mask", mask)
                                g.add(pre + "positions", r["pos"])
                                g.add(pre + "retrieve_indices", r["retrieve"])
                        rows.append(row)
            g.write(cfg, {k: v for k, v in sd.items()}, bin_name="pytorch_model.bin")


if __name__ == "__main__":
    {"train": train, "golden": golden}[sys.argv[1]]()
