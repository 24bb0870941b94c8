#!/usr/bin/env python3
"""Compares the outputs of this folder's models, which mlx-lm wrote, with those of transformers. See README.md.

usage: compare.py WORK_DIR [NAME...]
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

HERE = Path(__file__).parent
BOUND = 1e-5  # of the largest logit; both sides compute in float32
# Names of types that transformers does not have, and of an expert's matrices where they are others.
TYPES = {"kimi_k2": "deepseek_v3", "minimax": "minimax_m2"}
# What a larger model has around its text model, small.
VISION = {"kimi_k25": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
                       "pos_emb_height": 4, "pos_emb_width": 4}}
NOT_TEXT = "vision_tower.", "mm_projector."
PARTS = {"minimax": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}}


def weights_of(path, config):
    """All tensors in float32, under mlx-lm's names."""
    raw, out = mx.load(str(path / "model.safetensors")), {}
    for name, x in raw.items():
        base, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if kind == "weight" and base + ".scales" in raw:
            how = config["quantization"].get(base, config["quantization"])
            scales, biases = raw[base + ".scales"], raw.get(base + ".biases")
            wide = scales if biases is None else scales.astype(mx.float32)
            x = mx.dequantize(x, wide, None if biases is None else biases.astype(mx.float32), how["group_size"],
                              how["bits"], mode=how.get("mode", "affine"))
        out[name] = np.array(x.astype(mx.float32))
    return out


def experts_in_one(weights, before):
    """gpt-oss: all experts in one tensor, gate and up in turn, a column for each output."""
    part = {n: weights[f"{before}.{n}"] for n in ("gate_proj.weight", "up_proj.weight", "gate_proj.bias", "up_proj.bias",
                                                  "down_proj.weight", "down_proj.bias")}
    both = np.stack([part["gate_proj.weight"], part["up_proj.weight"]], axis=2).reshape(
        part["gate_proj.weight"].shape[0], -1, part["gate_proj.weight"].shape[2])
    return {before + ".gate_up_proj": both.swapaxes(1, 2),
            before + ".gate_up_proj_bias": np.stack([part["gate_proj.bias"], part["up_proj.bias"]], axis=2).reshape(
                both.shape[0], -1),
            before + ".down_proj": part["down_proj.weight"].swapaxes(1, 2),
            before + ".down_proj_bias": part["down_proj.bias"]}


def published(weights, kind):
    """The same under the names and in the shapes of published checkpoints: the reverse of mlx-lm's `sanitize`."""
    out = {}
    for name, x in weights.items():
        if ".switch_mlp." in name:
            before, part = name.removesuffix(".weight").split(".switch_mlp.")
            part = PARTS.get(kind, {}).get(part, part)
            out |= {f"{before}.experts.{i}.{part}.weight": expert for i, expert in enumerate(x)}
        elif kind == "gpt_oss" and ".experts." in name:
            out |= experts_in_one(weights, name[:name.index(".experts.")] + ".experts")
        elif name.endswith("embed_q.weight"):
            attention = name.removesuffix("embed_q.weight")
            both = np.concatenate([x.swapaxes(1, 2), weights[attention + "unembed_out.weight"]], axis=1)
            out[attention + "kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        elif name.endswith("conv1d.weight"):
            out[name] = np.moveaxis(x, 2, 1)
        elif kind == "qwen3_next" and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            out[name] = x - 1
        elif not name.endswith("unembed_out.weight"):
            out[name] = x
    return {name: np.ascontiguousarray(x) for name, x in out.items()}


def rewrite(name, to):
    config = json.loads((HERE / name / "config.json").read_text())
    tensors = published(weights_of(HERE / name, config), config["model_type"])
    config = {k: v for k, v in config.items() if not k.startswith("quantization")}
    config |= {"model_type": TYPES.get(config["model_type"], config["model_type"]), "dtype": "float32"}
    if config["model_type"] == "gpt_oss" and config["rope_scaling"] is None:  # for which transformers takes YaRN
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
        del config["rope_scaling"]
    if config["model_type"] in VISION:
        config |= {"vision_config": VISION[config["model_type"]], "projection_hidden_size": 32}
    if config["model_type"] == "glm4_moe_lite" and "first_k_dense_replace" in config:
        n = config["first_k_dense_replace"]
        config["mlp_layer_types"] = ["dense"] * n + ["sparse"] * (config["num_hidden_layers"] - n)
    to.mkdir(parents=True, exist_ok=True)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(config))


def compare(name, path):
    """The largest difference of any case's last logits, relative; None where the greedy text differs or a tensor is left."""
    kind = json.loads((path / "config.json").read_text())["model_type"]
    auto = AutoModelForImageTextToText if kind in VISION else AutoModelForCausalLM
    model, report = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    left = {kind: [x for x in sorted(names) if not any(part in x for part in NOT_TEXT)][:3] for kind, names in report.items()}
    left = {kind: names for kind, names in left.items() if names}
    golden, worst, same = load_file(HERE / f"{name}.golden.safetensors"), 0.0, not left
    for case in range(sum(k.endswith(".tokens") for k in golden)):
        ids, wanted = golden[f"case{case}.tokens"].tolist(), golden[f"case{case}.last_logits"]
        for i, next_id in enumerate(golden[f"case{case}.greedy"].tolist()):
            logits = model(torch.tensor([ids])).logits[0, -1].numpy()
            if i == 0:
                worst = max(worst, float(np.abs(logits - wanted).max() / np.abs(wanted).max()))
            same = same and int(logits.argmax()) == next_id
            ids.append(next_id)
    print(f"{name:16} {type(model).__name__:24} {worst:.1e} {'greedy alike' if same else 'DIFFERENT'} {left or ''}")
    return same and worst < BOUND


def main():
    mx.set_default_device(mx.cpu)
    torch.set_grad_enabled(False)
    work = Path(sys.argv[1])
    names = sys.argv[2:] or sorted(p.name for p in HERE.iterdir() if p.is_dir())
    results = []
    for name in names:
        rewrite(name, work / name)
        results.append(compare(name, work / name))
    sys.exit(0 if all(results) else 1)


main()
