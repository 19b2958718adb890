"""eagle3_specforge: an EAGLE-3.1 file as SpecForge exports it (midlayer.*, fc_norm, own embedding, nested layer ids).

REF_SPECFORGE=<SpecForge checkout> python make_specforge.py
"""

import os

import mini
import torch
import torch.nn.functional as F
from common import NEW, Golden, load_target, ref, states
from make_eagle import CFG3, TARGET, VD, prompts_file, train_data, vocab_map
from safetensors.torch import load_file

K, IDS = 5, [1, 3, 4]  # output-of-layer ids: hs[2], hs[4], hs[5]
STEPS = int(os.environ.get("STEPS", "240"))
CFG = {k: v for k, v in CFG3.items() if k != "pad_token_id"} | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "fc_norm": True,
    "norm_output": True,
    "head_dim": 16,
    "attention_bias": False,
    "rope_scaling": None,
    "max_position_embeddings": 128,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True},
}


def main():
    ref("SPECFORGE")
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    model = load_target(TARGET)
    s = load_file(prompts_file())
    P, G = s["prompts"], s["greedy"]
    own = torch.cat([P[1:2], G[1:2]], -1)
    ids, hs, z, logits = train_data(model, own=[F.pad(own, (0, 96 - own.shape[1]), value=32)])
    d2t, t2d = vocab_map(ids)
    keep = torch.arange(VD) + d2t
    embed = model.model.embed_tokens.weight.detach()
    aux = torch.cat([hs[i + 1] for i in IDS], -1)
    eng = mini.Eagle(3, 16, 10000.0, 1e-5, "midlayer.", fc_norm=True, norm_output=True)
    p = mini.init(eng.shapes(64, 4, 2, 80, VD), 85)
    p["lm_head.weight"] = model.lm_head.weight.detach()[keep] + 0.05 * p["lm_head.weight"]
    gen = torch.Generator().manual_seed(5)

    def loss(p, i):
        b = torch.randint(0, len(ids), (8,), generator=gen)
        total = 0
        for t, lg in enumerate(eng.unroll(p, embed, ids[b], aux[b], 3)):
            teacher = torch.softmax(logits[b][:, 1 + t : 1 + t + lg.shape[1]][..., keep], -1)
            total = total + 0.8**t * -(teacher * torch.log_softmax(lg, -1)).sum(-1).mean()
        return total

    p = mini.train(p, loss, STEPS)
    p |= {"d2t": d2t, "t2d": t2d, "embed_tokens.weight": embed.clone()}
    config = LlamaConfig(
        **{
            k: v
            for k, v in CFG.items()
            if k not in ("architectures", "model_type", "torch_dtype", "transformers_version")
        },
        pad_token_id=None,
    )
    draft = LlamaForCausalLMEagle3(config, attention_backend="sdpa").float().eval()
    print(draft.load_state_dict(p, strict=True), "rope theta", draft.midlayer.self_attn.rotary_emb.base)
    g = Golden(
        "eagle3_specforge",
        TARGET,
        "prefill and `draft_prenorm_feedback`: original reference implementation "
        "(SpecForge's training class); `draft` (post-norm feedback, as servers run it): independent "
        "reimplementation",
        "sgl-project/SpecForge a6b6b0230009d15ec2a97a57384e6f53f0f96946 (specforge/modeling/draft/llama3_eagle.py), "
        "transformers 5.24.0, torch 2.13.0 CPU fp32 sdpa",
    )
    g.j |= {"state_fed": "concat(hs[2], hs[4], hs[5])", "drafts_per_round": K, "prompts": []}

    def chain(tok, st):
        """The reference's own training-time unrolling; the last row of each step is the draft chain."""
        T = tok.shape[1]
        mask = draft.prepare_decoder_attention_mask(torch.ones(1, T, dtype=torch.bool), st, 1, T, 0)
        cache, cur, t = [[], []], draft.project_hidden_states(st), tok.clone()
        first, f0, out, lgs = None, None, [], []
        for _ in range(K):
            cur = draft.backbone(
                input_embeds=draft.embed_input_ids(t),
                hidden_states=cur,
                cache_hidden=cache,
                attention_mask=mask,
                position_ids=torch.arange(T)[None],
            )
            lg = draft.compute_logits(cur)
            first, f0 = (lg, cur) if first is None else (first, f0)
            j = int(lg[0, -1].argmax())
            out.append(j + int(draft.d2t[j]))
            lgs.append(lg[0, -1])
            t[0, -1] = out[-1]
        return first, f0, out, torch.stack(lgs)

    pre_norm = mini.Eagle(3, 16, 10000.0, 1e-5, "midlayer.", fc_norm=True, norm_output=False)
    with torch.no_grad():
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i : i + 1])
            g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
            seq = torch.cat([P[i : i + 1], G[i : i + 1]], -1)
            H, _, _ = states(model, seq)
            st = torch.cat([H[k + 1] for k in IDS], -1)
            start, rows, shown = P.shape[1], [], 0
            while start < P.shape[1] + NEW:
                tok, fed = seq[:, 1 : start + 1], st[:, :start]
                first, f0, ref_out, ref_lgs = chain(tok, fed)
                m1, o1, l1 = pre_norm.draft(p, embed, tok, fed, K, d2t)
                assert float((m1 - first).abs().max()) < 1e-3 and o1 == ref_out, (o1, ref_out)
                assert float((l1 - ref_lgs).abs().max()) < 1e-3
                _, drafts, lgs = eng.draft(p, embed, tok, fed, K, d2t)
                a = 0
                while a < K and start + 1 + a < seq.shape[1] and drafts[a] == int(seq[0, start + 1 + a]):
                    a += 1
                row = {
                    "committed": start,
                    "root": int(seq[0, start]),
                    "draft": drafts,
                    "accepted": a,
                    "draft_prenorm_feedback": ref_out,
                }
                if not rows:
                    g.add(f"p{i}.prefill.input_ids", tok)
                    g.add(f"p{i}.prefill.state", fed)
                    g.add(f"p{i}.prefill.feature", f0)
                    g.add(f"p{i}.prefill.logits", first)
                if shown < 4 and (not rows or rows[-1]["accepted"] < K):
                    pre = f"p{i}.r{len(rows)}."
                    row["tensors"], shown = pre, shown + 1
                    last = rows[-1]["committed"] if rows else 0
                    g.add(pre + "state", fed[:, last:])
                    g.add(pre + "input_ids", tok[:, last:])
                    g.add(pre + "logits", lgs)
                    g.add(pre + "logits_prenorm_feedback", ref_lgs)
                rows.append(row)
                start += a + 1
            g.j["prompts"].append({"rounds": rows})
    g.write(CFG, p)


if __name__ == "__main__":
    main()
