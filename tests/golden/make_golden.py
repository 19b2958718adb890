"""Make the tiny golden checkpoints, in the folder `golden` of the one that the variable GOLDEN names.

    python make_golden.py [--out DIR] [--only NAME ...]

Needs torch and transformers (see README.md for the versions used). Each folder gets
  config.json          what transformers' save_pretrained wrote (new style: `rope_parameters`)
  config_hub.json      the same model described the way published checkpoints describe it (old style:
                       `rope_theta` / `rope_scaling` / ...), only where that differs
  model.safetensors    fp32 weights under the published tensor names
  golden.safetensors   inputs and fp32 reference outputs (names: see README.md)
and report.json at the top collects the measured error of each model.
"""

import argparse
import copy
import json
import os
import re
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import MtpLayer

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cases import HIDDEN, VOCAB
from cases_more import CASES
from running import (
    Float64,
    MuseGlimmerText,
    TopkMargin,
    cached,
    diff,
    fuse_experts,
    greedy,
    inputs,
    mxfp4_pack,
    randomise,
    run,
    split_experts,
)

SHORT, LONG, PROMPT, NEW = 48, 150, 24, 24


def mtp_layer(model, cfg, style, seed):
    """One multi-token-prediction layer of the model's kind, with random weights."""
    c = copy.deepcopy(cfg)
    c.num_hidden_layers = 1
    if style == "qwen":
        c.layer_types = ["full_attention"]
    if hasattr(c, "mlp_layer_types") and c.mlp_layer_types is not None:
        c.mlp_layer_types = ["sparse"]
    if hasattr(c, "first_k_dense_replace"):
        c.first_k_dense_replace = 0
    c._attn_implementation = "eager"
    layer = MtpLayer(c, type(model.model.layers[-1]), type(model.model.norm), 0).eval()
    randomise(layer, seed)
    return layer


def make_mtp(model, cfg, style, seed, ids, final_hidden):
    """A prediction layer's tensors and its reference output (transformers' MtpLayer)."""
    L = cfg.num_hidden_layers
    layer = mtp_layer(model, cfg, style, seed)
    base = model.model
    T = ids.shape[1] - 1
    nxt, pos = ids[:, 1:], torch.arange(1, T + 1)[None]
    emb = base.embed_tokens(nxt)
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    cos_sin = base.rotary_emb(emb, pos)
    with torch.no_grad():
        h = layer(
            emb, final_hidden[:, :T], position_embeddings=cos_sin, attention_mask=mask, position_ids=pos, cache=None
        )
        logits = model.lm_head(h)
    sd = {}
    for k, v in layer.state_dict().items():
        if style == "qwen":
            k = {
                "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
                "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
                "eh_proj.weight": "mtp.fc.weight",
                "post_norm.weight": "mtp.norm.weight",
            }.get(k, k)
            k = k.replace("mtp_block.", "mtp.layers.0.")
        else:
            k = f"model.layers.{L}." + k.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
        sd[k] = v
    sd = split_experts(sd)
    if style == "deepseek":  # published checkpoints repeat the shared embedding and head here
        sd[f"model.layers.{L}.embed_tokens.weight"] = base.embed_tokens.weight.detach().clone()
        sd[f"model.layers.{L}.shared_head.head.weight"] = model.lm_head.weight.detach().clone()
    return sd, {
        "mtp.input_ids": nxt.clone(),
        "mtp.position_ids": pos,
        "mtp.prev_hidden": final_hidden[:, :T].clone(),
        "mtp.hidden": h,
        "mtp.logits": logits,
    }


def build(name, c, seed):
    kw = dict(c["kw"])
    cfg = AutoConfig.for_model(c["model_type"], **kw)
    cfg._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = (
        AutoModelForCausalLM.from_config(cfg, attn_implementation="eager", experts_implementation="eager")
        .float()
        .eval()
    )
    randomise(model, seed)
    model.tie_weights()
    return cfg, model


def make(name, c, out_dir):
    ids, long_ids = inputs(SHORT, 11), inputs(LONG, 12)
    best = None
    for seed in range(1, 41 if c["moe"] else 4):  # keep the seed whose discrete choices are the least close calls
        cfg, model = build(name, c, seed)
        score = float("inf")
        if c["moe"]:
            with TopkMargin() as m:
                run(model, ids)
                run(model, long_ids)
            score = m.min
        if best is None or score > best[0]:
            score = min(score, greedy(model, ids[:, :PROMPT], NEW)[1] / 10)
            if best is None or score > best[0]:
                best = (score, seed)
    seed = best[1]
    cfg, model = build(name, c, seed)
    with TopkMargin() as m:
        gold = run(model, ids, hidden=True)
        long_logits = run(model, long_ids)["logits"]
    new, margin = greedy(model, ids[:, :PROMPT], NEW)
    gold = {k: v.float().contiguous() for k, v in gold.items()}
    rep = {
        "seed": seed,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "class": type(model).__name__,
        "params": sum(p.numel() for p in model.parameters()),
        "logits_abs_max": float(gold["logits"].abs().max()),
        "logits_std": float(gold["logits"].std()),
        "greedy_margin": margin,
    }
    if c["moe"]:
        rep["topk_margin"] = m.min

    # how far apart do correct runs land?
    rep["cached_vs_full"] = diff(cached(model, ids), gold["logits"])
    with Float64():
        m64 = copy.deepcopy(model).double()
        g64 = run(m64, ids, hidden=True)
        l64 = run(m64, long_ids)["logits"]
    gold["f64.logits"] = g64["logits"].float()
    rep["fp32_vs_fp64"] = diff(g64["logits"], gold["logits"])
    rep["fp32_vs_fp64_long"] = diff(l64, long_logits)
    rep["fp32_vs_fp64_hidden"] = max(diff(g64[k], gold[k]) for k in gold if k.startswith("h."))
    rep["hidden_abs_max"] = max(float(gold[k].abs().max()) for k in gold if k.startswith("h."))
    try:
        ms = (
            AutoModelForCausalLM.from_config(cfg, attn_implementation="sdpa", experts_implementation="eager")
            .float()
            .eval()
        )
        ms.load_state_dict(model.state_dict())
        rep["sdpa_vs_eager"] = diff(run(ms, ids)["logits"], gold["logits"])
    except Exception as e:
        rep["sdpa_vs_eager"] = f"{type(e).__name__}: {e}"[:120]
    try:
        mb = copy.deepcopy(model).bfloat16()
        lb = run(mb, ids)["logits"].float()
        rep["bf16_max_diff"] = diff(lb, gold["logits"])
        rep["bf16_top1_agree"] = float((lb.argmax(-1) == gold["logits"].argmax(-1)).float().mean())
    except Exception as e:
        rep["bf16_max_diff"] = f"{type(e).__name__}: {e}"[:120]

    d = os.path.join(out_dir, name)
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    model.save_pretrained(d)
    for f in os.listdir(d):
        if f not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(d, f))
    sd = load_file(os.path.join(d, "model.safetensors"))
    gold["input_ids"], gold["long.input_ids"], gold["long.logits"] = ids, long_ids, long_logits.float()
    gold["greedy.prompt_ids"], gold["greedy.new_ids"] = ids[:, :PROMPT].clone(), new.contiguous()
    if c["mtp"]:
        msd, mg = make_mtp(model, cfg, c["mtp"], 1000 + seed, ids, gold["h.final"])
        rep["mtp_tensors"] = len(msd)
        sd.update(msd)
        gold.update({k: v.contiguous() for k, v in mg.items()})
    save_file(sd, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in gold.items()}, os.path.join(d, "golden.safetensors"))

    # the saved files must give the golden logits again, under both configs
    again = AutoModelForCausalLM.from_pretrained(
        d, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    ).eval()
    rep["reload_diff"] = diff(run(again, ids)["logits"], gold["logits"])
    if c["hub"] is not None:
        j = json.load(open(os.path.join(d, "config.json")))
        for k in c["hub_drop"]:
            j.pop(k, None)
        j.update(c["hub"])
        json.dump(j, open(os.path.join(d, "config_hub.json"), "w"), indent=2, sort_keys=True)
        hub_cfg = AutoConfig.for_model(**{k: v for k, v in j.items() if k != "transformers_version"})
        hm = AutoModelForCausalLM.from_pretrained(
            d, config=hub_cfg, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
        ).eval()
        rep["hub_config_diff"] = max(
            diff(run(hm, ids)["logits"], gold["logits"]), diff(run(hm, long_ids)["logits"], long_logits)
        )
    rep["bytes"] = sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d))
    rep["tensor_names"] = len(sd)
    return rep


def make_gpt_oss_mxfp4(out_dir):
    """gpt_oss again, with the experts as published: MXFP4 blocks and scales; golden = the dequantised model."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    src, d = os.path.join(out_dir, "gpt_oss"), os.path.join(out_dir, "gpt_oss_mxfp4")
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    sd, deq = {}, {}
    for k, v in load_file(os.path.join(src, "model.safetensors")).items():
        if k.endswith(("experts.gate_up_proj", "experts.down_proj")):
            b, s = mxfp4_pack(v)
            sd[k + "_blocks"], sd[k + "_scales"] = b, s
            deq[k] = convert_moe_packed_tensors(b, s, dtype=torch.float32)
        else:
            sd[k] = deq[k] = v
    cfg = AutoConfig.from_pretrained(src)
    model = (
        AutoModelForCausalLM.from_config(cfg, attn_implementation="eager", experts_implementation="eager")
        .float()
        .eval()
    )
    model.load_state_dict(deq)
    ids, long_ids = inputs(SHORT, 11), inputs(LONG, 12)
    with TopkMargin() as m:
        gold = {k: v.float().contiguous() for k, v in run(model, ids, hidden=True).items()}
        gold["long.logits"] = run(model, long_ids)["logits"]
    with Float64():
        m64 = copy.deepcopy(model).double()
        g64, l64 = run(m64, ids)["logits"], run(m64, long_ids)["logits"]
    fp = {"fp32_vs_fp64": diff(g64, gold["logits"]), "fp32_vs_fp64_long": diff(l64, gold["long.logits"])}
    gold["f64.logits"] = g64.float()
    gold["input_ids"], gold["long.input_ids"] = ids, long_ids
    new, margin = greedy(model, ids[:, :PROMPT], NEW)
    gold["greedy.prompt_ids"], gold["greedy.new_ids"] = ids[:, :PROMPT].clone(), new.contiguous()
    gold["dequantised.layer0.gate_up_proj"] = deq["model.layers.0.mlp.experts.gate_up_proj"].contiguous()
    for n in ("config.json", "config_hub.json"):
        j = json.load(open(os.path.join(src, n)))
        j["quantization_config"] = {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        }
        json.dump(j, open(os.path.join(d, n), "w"), indent=2, sort_keys=True)
    save_file(sd, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in gold.items()}, os.path.join(d, "golden.safetensors"))
    return {
        **fp,
        "topk_margin": m.min,
        "greedy_margin": margin,
        "logits_std": float(gold["logits"].std()),
        "logits_abs_max": float(gold["logits"].abs().max()),
        "bytes": sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d)),
    }


def muse_glimmer():
    """The model and its config."""
    cfg = AutoConfig.for_model(
        "muse_glimmer_text",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        sliding_window=16,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        output_multiplier=0.5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    cfg._attn_implementation = "eager"
    model = MuseGlimmerText(cfg).float().eval()
    randomise(model, 5)
    return cfg, model


def rebuild(name, seed):
    """Only draw the weights of a family, its prediction layer last."""
    if name == "muse_glimmer":
        muse_glimmer()
        return
    cfg, model = build(name, CASES[name], seed)
    if CASES[name]["mtp"]:
        mtp_layer(model, cfg, CASES[name]["mtp"], 1000 + seed)


def make_muse_glimmer(out_dir):
    d = os.path.join(out_dir, "muse_glimmer")
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    cfg, model = muse_glimmer()
    ids, long_ids = inputs(SHORT, 11), inputs(LONG, 12)
    gold = {k: v.float().contiguous() for k, v in run(model, ids, hidden=True).items()}
    long_logits = run(model, long_ids)["logits"]
    new, margin = greedy(model, ids[:, :PROMPT], NEW)
    rep = {
        "class": "MuseGlimmerTextModel + head",
        "seed": 5,
        "greedy_margin": margin,
        "logits_std": float(gold["logits"].std()),
        "logits_abs_max": float(gold["logits"].abs().max()),
        "cached_vs_full": diff(cached(model, ids), gold["logits"]),
    }
    with Float64():
        m64 = copy.deepcopy(model).double()
        g64 = run(m64, ids, hidden=True)
        rep["fp32_vs_fp64_long"] = diff(run(m64, long_ids)["logits"], long_logits)
    rep["fp32_vs_fp64"] = diff(g64["logits"], gold["logits"])
    rep["fp32_vs_fp64_hidden"] = max(diff(g64[k], gold[k]) for k in gold if k.startswith("h."))
    gold["f64.logits"] = g64["logits"].float()
    gold["input_ids"], gold["long.input_ids"], gold["long.logits"] = ids, long_ids, long_logits.float()
    gold["greedy.prompt_ids"], gold["greedy.new_ids"] = ids[:, :PROMPT].clone(), new.contiguous()
    sd = {re.sub(r"^model\.", "model.language_model.", k): v.contiguous() for k, v in model.state_dict().items()}
    sd["model.vision_tower.patch_embed.proj.weight"] = torch.zeros(8, 8)
    text = cfg.to_diff_dict() | {
        k: getattr(cfg, k)
        for k in (
            "layer_types",
            "layer_rope_theta",
            "rms_norm_eps",
            "post_norm_eps",
            "qk_scale_factor",
            "output_multiplier",
            "final_logit_softcapping",
            "sliding_window",
            "rope_parameters",
            "head_dim",
            "hidden_activation",
        )
    }
    text.pop("transformers_version", None)
    top = {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "model_type": "muse_glimmer",
        "dtype": "float32",
        "text_config": text,
        "vision_config": {"model_type": "muse_glimmer_vision"},
        "tie_word_embeddings": False,
    }
    json.dump(top, open(os.path.join(d, "config.json"), "w"), indent=2, sort_keys=True)
    save_file(sd, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in gold.items()}, os.path.join(d, "golden.safetensors"))
    rep["bytes"] = sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d))
    return rep


def make_nested(out_dir, src, name, model_type, arch, rename, extra, fuse=False):
    """The same weights the way multimodal checkpoints store them: nested config, longer prefix, tower tensors."""
    s, d = os.path.join(out_dir, src), os.path.join(out_dir, name)
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    sd = {}
    for k, v in load_file(os.path.join(s, "model.safetensors")).items():
        for a, b in rename:
            k, n = re.subn(a, b, k)
            if n:
                break
        sd[k] = v
    if fuse:
        sd = fuse_experts(sd)
    for k, shape in extra.items():
        sd[k] = torch.zeros(shape)
    hub = os.path.join(s, "config_hub.json")
    text = json.load(open(hub if os.path.exists(hub) else os.path.join(s, "config.json")))
    top = {
        "architectures": [arch],
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": text.pop("tie_word_embeddings", False),
        "dtype": "float32",
        "vision_config": {"model_type": model_type, "hidden_size": 32},
    }
    text.pop("architectures", None)
    json.dump(top, open(os.path.join(d, "config.json"), "w"), indent=2, sort_keys=True)
    save_file(sd, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    shutil.copy(os.path.join(s, "golden.safetensors"), d)
    return {"copy_of": src, "bytes": sum(os.path.getsize(os.path.join(d, f)) for f in os.listdir(d))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default=os.path.join(os.environ["GOLDEN"], "golden"))
    ap.add_argument("--only", nargs="*")
    a = ap.parse_args()
    torch.set_num_threads(1)
    rp = os.path.join(a.out, "report.json")
    report = json.load(open(rp)) if os.path.exists(rp) else {}

    def do(name, fn, *args):
        if a.only and name not in a.only:
            return
        try:
            report[name] = fn(*args)
        except Exception as e:
            import traceback

            traceback.print_exc()
            report[name] = {"failed": f"{type(e).__name__}: {e}"[:300]}
        print(name, json.dumps(report[name]), flush=True)
        json.dump(report, open(rp, "w"), indent=1, sort_keys=True)

    for name, c in CASES.items():
        do(name, make, name, c, a.out)
    do("gpt_oss_mxfp4", make_gpt_oss_mxfp4, a.out)
    do("muse_glimmer", make_muse_glimmer, a.out)
    do(
        "qwen3_5_nested",
        make_nested,
        a.out,
        "qwen3_5",
        "qwen3_5_nested",
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        [(r"^model\.", "model.language_model.")],
        {"model.visual.patch_embed.proj.weight": (8, 8)},
    )
    do(
        "qwen3_5_moe_nested",
        make_nested,
        a.out,
        "qwen3_5_moe",
        "qwen3_5_moe_nested",
        "qwen3_5_moe",
        "Qwen3_5MoeForConditionalGeneration",
        [(r"^model\.", "model.language_model.")],
        {"model.visual.patch_embed.proj.weight": (8, 8)},
        True,
    )
    do(
        "gemma3_nested",
        make_nested,
        a.out,
        "gemma3",
        "gemma3_nested",
        "gemma3",
        "Gemma3ForConditionalGeneration",
        [(r"^model\.", "language_model.model.")],
        {
            "vision_tower.vision_model.post_layernorm.weight": (8,),
            "multi_modal_projector.mm_input_projection_weight": (8, 8),
        },
    )
    do(
        "gemma4_nested",
        make_nested,
        a.out,
        "gemma4_e",
        "gemma4_nested",
        "gemma4",
        "Gemma4ForConditionalGeneration",
        [(r"^model\.", "model.language_model.")],
        {"model.vision_tower.patch_embedder.input_proj.weight": (8, 8)},
    )


if __name__ == "__main__":
    main()
