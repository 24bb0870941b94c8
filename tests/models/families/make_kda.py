#!/usr/bin/env python3
"""Writes published checkpoints of Kimi-Linear and Ling-3.0 with transformers, random weights in bfloat16, and their float32
outputs. See README.md.

usage: make_kda.py OUT_DIR [NAME...]
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from make_hf import on_grid, topk_by_index
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch
from transformers import BailingHybridConfig, BailingHybridForCausalLM
from transformers import KimiLinearConfig, KimiLinearForCausalLM

COMMON = {
    "vocab_size": 103,
    "hidden_size": 64,
    "hidden_act": "silu",
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "use_cache": True,
}

# Kimi-Linear-48B-A3B's configuration in small: every key of the published file.
KIMI_PLAIN = COMMON | {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "head_dim": 24,
    "kv_lora_rank": 64,
    "linear_attn_config": {"full_attn_layers": [4], "head_dim": 32, "kda_layers": [1, 2, 3], "num_heads": 2,
                           "short_conv_kernel_size": 4},
    "mla_use_nope": True,
    "model_max_length": 8192,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 2,
    "num_expert_group": 1,
    "num_experts": 4,
    "num_experts_per_token": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 32,
}

# As transformers writes it: flat keys. Three heads of 20 channels, three taps, two groups of experts, two shared experts,
# weights that are not normalised, queries of a low rank, attention first.
KIMI_ODD = COMMON | {
    "bos_token_id": 2,
    "eos_token_id": [1, 2],
    "kv_lora_rank": 40,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "linear_conv_kernel_dim": 3,
    "linear_head_dim": 20,
    "linear_num_heads": 3,
    "max_position_embeddings": 4096,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "n_group": 2,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 3,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "num_local_experts": 4,
    "q_lora_rank": 36,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 1.5,
    "topk_group": 1,
    "v_head_dim": 28,
}

LING = COMMON | {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "eos_token_id": 1,
    "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1,
    "kda_lower_bound": -5.0,
    "kda_safe_gate": True,
    "linear_silu": True,
    "max_position_embeddings": 8192,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 3,
    "no_kda_lora": True,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_interleave": True,
    "rope_scaling": None,
    "rope_theta": 6000000,
    "rotary_dim": 16,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "scoring_func": "sigmoid",
    "short_conv_kernel_size": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "use_bias": False,
    "use_mla_nope": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
}

# Ling-3.0-tiny's configuration in small.
LING_TINY = LING | {
    "expert_swiglu_limit_list": None,
    "first_k_dense_replace": 1,
    "head_dim": 32,
    "kv_lora_rank": 64,
    "layer_group_size": 3,
    "num_attention_heads": 2,
    "num_experts": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "qk_head_dim": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "share_expert_swiglu_limit_list": None,
    "v_head_dim": 32,
}

# Ling-3.0-flash's: plain queries, and activations that are clamped in late layers, by amounts that random weights exceed.
LING_FLASH = LING | {
    "expert_swiglu_limit_list": [0, 0, 0, 0.25],
    "first_k_dense_replace": 2,
    "head_dim": 32,
    "kv_lora_rank": 64,
    "layer_group_size": 3,
    "num_attention_heads": 2,
    "num_experts": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "share_expert_swiglu_limit_list": [0, 0, 0.375, 0.5],
    "v_head_dim": 32,
}

# Decays without a bound, heads of 20 channels, two taps, two groups of experts, a shared expert of another width, an
# incomplete last group of layers.
LING_ODD = LING | {
    "first_k_dense_replace": 0,
    "head_dim": 20,
    "kda_safe_gate": False,
    "kv_lora_rank": 44,
    "layer_group_size": 2,
    "moe_shared_expert_intermediate_size": 128,
    "n_group": 2,
    "num_attention_heads": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 52,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 1.0,
    "short_conv_kernel_size": 2,
    "topk_group": 1,
    "v_head_dim": 36,
}

MODELS = {"kimilin-plain": KIMI_PLAIN, "kimilin-odd": KIMI_ODD, "ling-tiny": LING_TINY, "ling-flash": LING_FLASH,
          "ling-odd": LING_ODD}
PARTS = "gate_proj", "up_proj", "down_proj"
PROMPTS = (1, 19, 65, 300, 2500)
GREEDY = (8, 8, 8, 4, 2)
STATES = 19  # tokens of the prompts whose hidden states are kept
WHOLE = 65  # longer prompts have their last logits only


def fill(model):
    rng = np.random.default_rng(38)
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        shape = tuple(x.shape)
        if "inv_freq" in name:
            continue
        if "norm" in name:
            value = 1 + 0.1 * rng.standard_normal(shape)
        elif name.endswith("A_log"):
            value = rng.uniform(-1, 1.5, shape)
        elif name.endswith("dt_bias"):
            value = rng.uniform(-4, 1, shape)
        elif name.endswith("bias"):
            value = 0.1 * rng.standard_normal(shape)
        elif "conv1d" in name:
            value = 0.4 * rng.standard_normal(shape)
        elif "gate.weight" in name and "mlp" in name:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embed" in name:
            value = on_grid(rng, shape, 1, 4)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32)).to(x.dtype)


def layer_types(keys):
    """The layers that Ling's own code and mlx-lm derive; transformers leaves out the incomplete group."""
    group, n = keys["layer_group_size"], keys["num_hidden_layers"]
    return ["full_attention" if (i + 1) % group == 0 or i >= n // group * group else "linear_attention" for i in range(n)]


def config_of(name, keys):
    if name.startswith("kimi"):
        return KimiLinearConfig(**keys)
    names = {"num_experts": "num_local_experts", "num_shared_experts": "n_shared_experts"}
    return BailingHybridConfig(**{names.get(k, k): v for k, v in keys.items()}, layer_types=layer_types(keys))


def write(name, keys, folder):
    config = config_of(name, keys)
    model = (KimiLinearForCausalLM if name.startswith("kimi") else BailingHybridForCausalLM)(config)
    if name == "ling-odd":
        widen_shared(model, keys)
    model.set_attn_implementation("eager")
    fill(model)
    model = in_float32(model, keys)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    for other in folder.glob("generation_config.json"):
        other.unlink()
    if not name.endswith("-odd"):
        publish_names(folder / "model.safetensors")
    if name != "kimilin-odd":
        (folder / "config.json").write_text(json.dumps(keys | {"dtype": "bfloat16"}, indent=1, sort_keys=True) + "\n")
    return model


def publish_names(path):
    """transformers gives the dense layers of Kimi-Linear, and the delta net's last product of Ling, others' names."""
    tensors = load_file(path)
    delta = {x.split(".f_proj.")[0] for x in tensors if ".f_proj." in x}
    renamed = {}
    for key, x in tensors.items():
        if ".block_sparse_moe." in key and key.split(".block_sparse_moe.")[1].split(".")[0] in PARTS:
            key = key.replace(".block_sparse_moe.", ".mlp.")
        if key.split(".dense.")[0] in delta:
            key = key.replace(".dense.", ".o_proj.")
        renamed[key] = x
    save_torch(renamed, path, {"format": "pt"})


def widen_shared(model, keys):
    """transformers does not have moe_shared_expert_intermediate_size."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "shared_experts"):
            n, shared = keys["moe_shared_expert_intermediate_size"], layer.mlp.shared_experts
            for part, shape in (("gate_proj", (n, 64)), ("up_proj", (n, 64)), ("down_proj", (64, n))):
                getattr(shared, part).weight = torch.nn.Parameter(torch.zeros(shape))


def clamped(layer, limit):
    """The published vLLM code's activation, which transformers leaves out: silu(gate) and up are clamped."""
    def forward(x):
        gate = torch.nn.functional.silu(layer.gate_proj(x)).clamp(max=limit)
        return layer.down_proj(gate * layer.up_proj(x).clamp(-limit, limit))
    layer.forward = forward


def clamp_experts(experts, limit):
    def forward(x, idx, weights):
        out = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for k, w in zip(idx[t].tolist(), weights[t]):
                gate, up = (experts.gate_up_proj[k] @ x[t]).chunk(2)
                act = torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
                out[t] += w * (experts.down_proj[k] @ act)
        return out
    experts.forward = forward


def in_float32(model, keys):
    """The numbers of the file, computed in float32."""
    angles = getattr(model.model, "rotary_emb", None)
    exact = angles.inv_freq.clone() if angles else None
    model.to(torch.bfloat16).to(torch.float32)
    if angles:
        angles.inv_freq = exact
    for i, layer in enumerate(model.model.layers):
        routed = (keys.get("expert_swiglu_limit_list") or [0] * 99)[i]
        shared = (keys.get("share_expert_swiglu_limit_list") or [0] * 99)[i]
        if hasattr(layer.mlp, "experts") and routed:
            clamp_experts(layer.mlp.experts, routed)
        if hasattr(layer.mlp, "shared_experts") and shared:
            clamped(layer.mlp.shared_experts, shared)
    return model.eval()


def outputs(name, keys, model):
    rng, out, hidden = np.random.default_rng(7), {}, []

    def see(layer, args, result):
        hidden.append(result[0].numpy())
        return result

    def logits_of(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    for case, n in enumerate(PROMPTS):
        ids = rng.integers(3, keys["vocab_size"], n).tolist()
        greedy, gap = [], []
        hidden.clear()
        layers = model.model.layers
        hooks = [layers[0].register_forward_pre_hook(lambda layer, args: hidden.append(args[0][0].numpy()))]
        hooks += [layer.register_forward_hook(see) for layer in layers]
        logits = logits_of(ids)
        for hook in hooks:
            hook.remove()
        last, more = logits[-1], list(ids)
        for _ in range(GREEDY[case]):
            order = np.sort(last)
            greedy.append(int(np.argmax(last)))
            gap.append(order[-1] - order[-2])
            more.append(greedy[-1])
            last = logits_of(more)[-1]
        part = {"tokens": np.array(ids, np.int32), "last_logits": logits[-1].copy(),
                "greedy": np.array(greedy, np.int32), "gap": np.array(gap, np.float32)}
        if n <= WHOLE:
            part["logits"] = logits
        if n <= STATES:
            part["hidden"] = np.stack(hidden)
        out.update({f"case{case}.{k}": v for k, v in part.items()})
        print(name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap], flush=True)
    return out


def main():
    torch.set_num_threads(1)
    torch.Tensor.topk = topk_by_index
    torch.manual_seed(1)
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        keys = MODELS[name]
        model = write(name, keys, root / name)
        save_file(outputs(name, keys, model), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
