"""layerskip: target_llama8 fine-tuned with an early-exit loss at layer 3, run by facebookresearch/LayerSkip.

python make_layerskip.py train
REF_LAYERSKIP=<LayerSkip checkout> python make_layerskip.py golden     (transformers 4.45)
python make_layerskip.py upstream          transformers 5.24's generate(assistant_early_exit=3) on the same folder
"""

import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from common import (
    NEW,
    ROOT,
    Golden,
    batch,
    corpus,
    dumps,
    load_target,
    pick_prompts,
    prompt_pool,
    ref,
    states,
    target_dir,
)
from safetensors.torch import load_file, save_file

E, K, NAME = 3, 5, "layerskip"
DIR = os.path.join(ROOT, NAME)


def train():
    model = load_target("target_llama8")
    model.set_attn_implementation("sdpa")
    gen = torch.Generator().manual_seed(61)
    data = corpus()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = int(os.environ.get("STEPS", "200"))
    model.train()
    for i in range(steps):
        for g in opt.param_groups:
            g["lr"] = 2e-3 * (1 - 0.9 * i / steps)
        x = batch(data, 10, 65, gen)
        out = model(input_ids=x[:, :-1], use_cache=False, output_hidden_states=True)
        early = model.lm_head(model.model.norm(out.hidden_states[E]))
        y = x[:, 1:].reshape(-1)
        loss = F.cross_entropy(out.logits.reshape(-1, 256), y) + 0.5 * F.cross_entropy(early.reshape(-1, 256), y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if i % 40 == 0 or i == steps - 1:
            print("step", i, round(loss.item(), 3), flush=True)
    os.makedirs(DIR, exist_ok=True)
    src = target_dir("target_llama8")
    shutil.copy(os.path.join(src, "config_hub.json"), os.path.join(DIR, "config.json"))
    save_file(
        {k: v.detach().contiguous() for k, v in model.state_dict().items()},
        os.path.join(DIR, "model.safetensors"),
        metadata={"format": "pt"},
    )
    model = load_target(NAME)
    P, G, M = pick_prompts(model, prompt_pool("text", seed=8))
    print("margins", M, [bytes(g[0].tolist()) for g in G])
    save_file(
        {"prompts": torch.cat(P), "greedy": torch.cat(G)},
        os.path.join(ROOT, "target_llama8", "prompts_layerskip.safetensors"),
    )


def saved():
    s = load_file(os.path.join(ROOT, "target_llama8", "prompts_layerskip.safetensors"))
    return s["prompts"], s["greedy"]


def golden():
    ref("LAYERSKIP")
    import self_speculation.self_speculation_generator as mod
    import transformers

    P, G = saved()
    cfg = json.load(open(os.path.join(DIR, "config.json")))
    model = transformers.LlamaForCausalLM.from_pretrained(
        DIR, torch_dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert model.config.rope_theta == 500000.0
    g = Golden(
        NAME,
        NAME,
        "original reference implementation",
        "facebookresearch/LayerSkip f42c66965545747d42e27d4beab86b5c17956566 "
        "(self_speculation/self_speculation_generator.py), transformers 4.45.2, torch 2.13.0 CPU fp32",
    )
    g.j |= {
        "exit_layer": E,
        "drafts_per_round": K,
        "first_round": "drafts from the prompt itself: the first draft stands where the first new token is",
        "prompts": [],
    }
    early, verify, done = [], [], []
    o_early, o_rem = mod.forward_early, mod.forward_remainder
    strat = mod.SelfSpeculativeGenerationStrategy()
    o_step = strat.single_step_speculation

    def fe(*a):
        r = o_early(*a)
        early[-1].append((r.logits[:, -1].detach().clone(), r.exit_query_cache.detach().clone()))
        return r

    def fr(m, ids, *a):
        r = o_rem(m, ids, *a)
        verify.append((ids.clone(), r.logits.detach().clone()))
        return r

    def step(**k):
        early.append([])
        r = o_step(**k)
        done.append(r[3])
        return r

    mod.forward_early, mod.forward_remainder, strat.single_step_speculation = fe, fr, step
    for i in range(len(P)):
        early.clear(), verify.clear(), done.clear()
        with torch.no_grad():
            out = strat.generate_token_ids(
                model,
                P[i].tolist(),
                [-7],
                mod.GenerationConfig(
                    max_steps=NEW,
                    exit_layer=E,
                    num_speculations=K,
                    sample=False,
                    generation_strategy="self_speculative",
                ),
            )
        assert out.predicted_tokens[:NEW] == G[i, :NEW].tolist(), "not lossless"
        g.add(f"p{i}.prompt_ids", P[i : i + 1])
        g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
        rows, n = [], P.shape[1]
        for k, a in enumerate(done):
            ids = verify[k][0]
            nd = len(early[k])
            row = {"committed": n - 1, "root": int(ids[0, -nd - 1]), "draft": ids[0, -nd:].tolist(), "accepted": a}
            if len(row["draft"]) < K:
                row["note"] = "shortened by the length limit"
            if k < 4:
                pre = f"p{i}.r{k}."
                row["tensors"] = pre
                g.add(pre + "exit_logits", torch.cat([e[0] for e in early[k]]))
                g.add(pre + "exit_query", early[k][-1][1])
                g.add(pre + "verify_logits", verify[k][1][:, -nd - 1 :])
            rows.append(row)
            n += a + 1
        g.j["prompts"].append({"rounds": rows})
    g.write(cfg, load_file(os.path.join(DIR, "model.safetensors")))


def upstream():
    P, G = saved()
    model = load_target(NAME)
    same = []
    for i in range(len(P)):
        out = model.generate(
            P[i : i + 1], max_new_tokens=NEW, do_sample=False, assistant_early_exit=E, eos_token_id=None, pad_token_id=0
        )
        same.append(bool(torch.equal(out[0, P.shape[1] :], G[i, :NEW])))
    f = os.path.join(DIR, "golden.json")
    j = json.load(open(f))
    j["transformers_5_24_assistant_early_exit_gives_the_same_tokens"] = same
    # exit logits by transformers' layers, as a second witness
    t = load_file(os.path.join(DIR, "golden.safetensors"))
    hs, z, _ = states(model, P[:1])
    lg = model.lm_head(model.model.norm(hs[E]))[0, -1]
    j["exit_logits_difference_to_transformers_5_24"] = float((lg - t["p0.r0.exit_logits"][0]).abs().max())
    open(f, "w").write(dumps(j) + "\n")
    print(same, j["exit_logits_difference_to_transformers_5_24"])


if __name__ == "__main__":
    {"train": train, "golden": golden, "upstream": upstream}[sys.argv[1]]()
