#!/usr/bin/env python3
"""Writes Nemotron-3 in small with transformers, random weights in bfloat16, and their float32 outputs; with MLX as the first
argument, writes mlx-lm's form of nemo-plain in 4 bits and compares its outputs. See README.md.

usage: make_nemo.py [MLX] OUT_DIR [NAME...]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import make_win
from make_hf import on_grid

COMMON = {
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "n_shared_experts": 1,
    "num_logits_to_keep": 1,
    "residual_in_fp32": False,
    "tie_word_embeddings": False,
    "use_bias": False,
    "vocab_size": 103,
}

# The keys and options of the published file in small.
PLAIN = COMMON | {
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 16,
    "hybrid_override_pattern": "M*E",
    "intermediate_size": 64,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 16,
    "mamba_num_heads": 8,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 128,
    "n_group": 1,
    "n_groups": 2,
    "n_routed_experts": 4,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 1.0,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "ssm_state_size": 16,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, float("inf")],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "topk_group": 1,
    "use_conv_bias": True,
}

# Six heads of 10 channels in two groups with 12 states, three taps without biases, a lower bound of the time steps, three heads
# of 20 channels over one, two groups of experts whose weights are not normalised, a dense layer.
ODD = COMMON | {
    "conv_kernel": 3,
    "head_dim": 20,
    "intermediate_size": 68,
    "layer_norm_epsilon": 1e-06,
    "layers_block_type": ["moe", "linear_attention", "mlp", "full_attention"],
    "mamba_head_dim": 10,
    "mamba_num_heads": 6,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 2,
    "n_groups": 2,
    "n_routed_experts": 4,
    "norm_topk_prob": False,
    "num_attention_heads": 3,
    "num_experts_per_tok": 1,
    "num_key_value_heads": 1,
    "routed_scaling_factor": 1.0,
    "ssm_state_size": 12,
    "time_step_limit": [0.25, float("inf")],
    "time_step_min": 0.25,
    "topk_group": 1,
    "use_conv_bias": False,
}

# Experts of a latent, as in Super and Ultra, before and after the attention.
LATENT = PLAIN | {
    "hidden_size": 128,
    "hybrid_override_pattern": "E*E",
    "moe_latent_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 5.0,
}
MODELS = {"nemo-plain": PLAIN, "nemo-odd": ODD, "nemo-latent": LATENT}


def fill(model):
    rng = np.random.default_rng(38)
    for key, x in [*model.named_parameters(), *model.named_buffers()]:
        shape = tuple(x.shape)
        if "norm" in key:
            value = 1 + np.round(12.8 * rng.standard_normal(shape)) / 128
        elif key.endswith("correction_bias"):
            value = np.round(16 * rng.standard_normal(shape)) / 128
        elif key.endswith("A_log"):
            value = rng.uniform(-1, 2, shape)
        elif key.endswith("dt_bias"):
            value = rng.uniform(-3, 0, shape)
        elif key.endswith((".D", "conv1d.bias")):
            value = np.round(64 * rng.standard_normal(shape)) / 128
        elif "conv1d" in key:
            value = np.round(51 * rng.standard_normal(shape)) / 128
        elif ".gate.weight" in key:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embeddings" in key:
            value = on_grid(rng, shape, 1, 4)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32)).to(x.dtype)


def write(name, keys, folder):
    """The published models were trained with time_step_limit; transformers takes time_step_min for prompts alone."""
    from transformers import NemotronHConfig, NemotronHForCausalLM
    own = {k: v for k, v in keys.items() if k not in ("model_type", "num_hidden_layers", "partial_rotary_factor", "rope_theta")}
    model = NemotronHForCausalLM(NemotronHConfig(**own | {"time_step_min": max(keys["time_step_limit"][0], 1e-30)}))
    model.set_attn_implementation("eager")
    fill(model)
    biases = {k: x.clone() for k, x in model.named_buffers() if k.endswith("correction_bias")}
    model.to(torch.bfloat16)
    for key, x in model.named_buffers():
        if key in biases:
            x.data = biases[key]
    model.save_pretrained(folder)
    for other in folder.glob("generation_config.json"):
        other.unlink()
    if name == "nemo-plain":
        published = keys | {"architectures": ["NemotronHForCausalLM"], "dtype": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(published, indent=1, sort_keys=True) + "\n")
    return model.to(torch.float32).eval()


def compare(name, root):
    """Writes mlx-lm's form in 4 bits, and compares its float32 logits."""
    import mlx.core as mx
    from mlx_lm.models import nemotron_h
    from mlx_lm.utils import quantize_model, save_config, save_model
    config = json.loads((root / name / "config.json").read_text())
    config["time_step_limit"] = MODELS[name]["time_step_limit"]
    model = nemotron_h.Model(nemotron_h.ModelArgs.from_dict(config))
    raw = {k: x.astype(mx.float32) for k, x in mx.load(str(root / name / "model.safetensors")).items()}
    model.load_weights(list(model.sanitize(raw).items()), strict=True)
    golden = load_file(root / f"{name}.golden.safetensors")
    for case in range(len(make_win.PROMPTS)):
        logits = np.array(model(mx.array([golden[f"case{case}.tokens"].tolist()]))[0])
        want = golden[f"case{case}.last_logits"]
        print(name, len(golden[f"case{case}.tokens"]), float(np.abs(logits[-1] - want).max() / np.abs(want).max()), flush=True)
    if name != "nemo-plain":
        return
    model.set_dtype(mx.bfloat16)
    bits = {"group_size": 64, "bits": 4}

    def takes(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % 64:
            return False
        return bits | {"bits": 8} if path.endswith("gate") else True

    model, config = quantize_model(model, config, 64, 4, quant_predicate=takes)
    folder = root / "nemo-mlx"
    folder.mkdir(exist_ok=True)
    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_config(config, folder / "config.json")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    is_mlx = sys.argv[1] == "MLX"
    root, names = Path(sys.argv[1 + is_mlx]), sys.argv[2 + is_mlx:] or MODELS
    make_win.PROMPTS, make_win.GREEDY = (1, 19, 65, 300), (8, 8, 4, 2)
    for name in names:
        if is_mlx:
            compare(name, root)
        else:
            model = write(name, MODELS[name], root / name)
            save_file(make_win.outputs(name, MODELS[name], model), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
