#!/usr/bin/env python3
"""Writes Kimi-K3 in small under the publisher's names, random weights in bfloat16, and mlx-lm's float32 outputs; k3-mlx: the
numbers of k3-plain as mlx-lm stores them, in 4 bits without loss. See README.md.

usage: make_k3.py OUT_DIR [NAME...]
"""

import copy
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import kimi_k3
from mlx_lm.utils import quantize_model, save_config, save_model

COMMON = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "situ",
    "initializer_range": 0.02,
    "mla_use_nope": True,
    "model_type": "kimi_linear",
    "moe_router_activation_func": "sigmoid",
    "num_nextn_predict_layers": 0,
    "pad_token_id": 0,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "use_grouped_topk": True,
}

# Every key of the published file that changes the text model, with its values wherever they are no sizes. Two layers in the
# first block, one in the second.
PLAIN = COMMON | {
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "attn_res_block_size": 2,
    "first_k_dense_replace": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "kv_lora_rank": 64,
    "latent_moe_use_norm": True,
    "linear_attn_config": {"full_attn_layers": [3], "gate_lower_bound": -5.0, "head_dim": 32, "kda_layers": [1, 2],
                           "num_heads": 2, "short_conv_kernel_size": 4, "use_full_rank_gate": True},
    "mla_use_output_gate": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "num_attention_heads": 2,
    "num_expert_group": 1,
    "num_experts": 4,
    "num_experts_per_token": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_shared_experts": 2,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "routed_expert_hidden_size": 64,
    "v_head_dim": 32,
    "vocab_size": 103,
}

# Latents of half the width without a norm, plain experts, three heads of 20 channels, decays without a bound and gates of a low
# rank, three taps, plain queries, no output gates, SiTU that bends and leaves up rows alone, experts in the first layer alone,
# two groups of experts whose weights are not normalised, a block for each layer.
ODD = COMMON | {
    "activation_situ_beta": 0.75,
    "activation_situ_linear_beta": None,
    "attn_res_block_size": 1,
    "first_k_dense_replace": 0,
    "hidden_size": 128,
    "intermediate_size": 68,
    "kv_lora_rank": 28,
    "linear_attn_config": {"full_attn_layers": [1], "head_dim": 20, "kda_layers": [2], "num_heads": 3,
                           "short_conv_kernel_size": 3},
    "moe_intermediate_size": 64,
    "moe_layer_freq": 2,
    "moe_renormalize": False,
    "num_attention_heads": 3,
    "num_expert_group": 2,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 1.5,
    "routed_expert_hidden_size": 64,
    "v_head_dim": 36,
    "vocab_size": 67,
}

MODELS = {"k3-plain": PLAIN, "k3-odd": ODD}
PROMPTS = (1, 19, 65, 300)
GREEDY = (8, 8, 4, 2)
WHOLE = 19  # longer prompts have their last logits only
MXFP4 = {"config_groups": {"group_0": {
    "input_activations": None, "output_activations": None, "targets": ["Linear"],
    "weights": {"dynamic": False, "group_size": 32, "num_bits": 4, "observer": "minmax", "strategy": "group",
                "symmetric": True, "type": "float"}}},
    "format": "mxfp4-pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def on_grid(rng, shape, size, codes=(-8, -3, 2, 7)):
    """Few codes times a power of two, which 4 bits hold: each group of 32 has the smallest and the largest one."""
    picked = rng.choice(codes, shape).reshape(-1, shape[-1])
    for group in range(0, shape[-1] // 32 * 32, 32):
        first, second = rng.choice(32, 2, replace=False)
        picked[:, group + first], picked[:, group + second] = codes[0], codes[-1]
    return (picked * 2.0 ** np.round(np.log2(size / np.std(codes)))).reshape(shape)


def matrix(rng, rows, cols):
    return on_grid(rng, (rows, cols), 1 / np.sqrt(cols))


def expert(rng, rows, cols):
    """Numbers of MXFP4."""
    return on_grid(rng, (rows, cols), 1 / np.sqrt(cols), (-6, -2, 1, 4))


def norm(rng, n):
    return 1 + np.round(12.8 * rng.standard_normal(n)) / 128


def delta(rng, keys):
    c, hidden = keys["linear_attn_config"], keys["hidden_size"]
    heads, dim, taps = c["num_heads"], c["head_dim"], c["short_conv_kernel_size"]
    inner = heads * dim
    out = {f"{x}_proj.weight": matrix(rng, inner, hidden) for x in "qkv"}
    out |= {f"{x}_conv1d.weight": np.round(51 * rng.standard_normal((inner, 1, taps))) / 128 for x in "qkv"}
    out |= {"f_a_proj.weight": matrix(rng, dim, hidden), "f_b_proj.weight": matrix(rng, inner, dim),
            "b_proj.weight": matrix(rng, heads, hidden), "o_proj.weight": matrix(rng, hidden, inner),
            "o_norm.weight": norm(rng, dim), "dt_bias": np.round(rng.uniform(-4, 1, inner) * 16) / 16}
    if c.get("use_full_rank_gate"):
        out["g_proj.weight"] = matrix(rng, inner, hidden)
    else:
        out |= {"g_a_proj.weight": matrix(rng, dim, hidden), "g_b_proj.weight": matrix(rng, inner, dim)}
    # The published tensor has a number for each channel of a head.
    out["A_log"] = np.concatenate([rng.uniform(-1, 1.5, heads), np.full(dim - heads, 9.0)])
    return out


def latent(rng, keys):
    hidden, heads, rank = keys["hidden_size"], keys["num_attention_heads"], keys["kv_lora_rank"]
    nope, rope, values = keys["qk_nope_head_dim"], keys["qk_rope_head_dim"], keys["v_head_dim"]
    out = {"kv_a_proj_with_mqa.weight": matrix(rng, rank + rope, hidden), "kv_a_layernorm.weight": norm(rng, rank),
           "kv_b_proj.weight": matrix(rng, heads * (nope + values), rank),
           "o_proj.weight": matrix(rng, hidden, heads * values)}
    if keys["q_lora_rank"]:
        out |= {"q_a_proj.weight": matrix(rng, keys["q_lora_rank"], hidden),
                "q_a_layernorm.weight": norm(rng, keys["q_lora_rank"]),
                "q_b_proj.weight": matrix(rng, heads * (nope + rope), keys["q_lora_rank"])}
    else:
        out["q_proj.weight"] = matrix(rng, heads * (nope + rope), hidden)
    if keys.get("mla_use_output_gate"):
        out["g_proj.weight"] = matrix(rng, heads * values, hidden)
    return out


def gated(rng, hidden, inner):
    return {"gate_proj.weight": matrix(rng, inner, hidden), "up_proj.weight": matrix(rng, inner, hidden),
            "down_proj.weight": matrix(rng, hidden, inner)}


def experts(rng, keys):
    hidden, inner, n = keys["hidden_size"], keys["moe_intermediate_size"], keys["num_experts"]
    latent_size = keys.get("routed_expert_hidden_size")
    width = latent_size or hidden
    # Routers have 8 bits.
    out = {"gate.weight": on_grid(rng, (n, hidden), 1 / np.sqrt(hidden), (-128, -43, 42, 127)),
           "gate.e_score_correction_bias": np.round(16 * rng.standard_normal(n)) / 128}
    if latent_size:
        out |= {"routed_expert_down_proj.weight": matrix(rng, width, hidden),
                "routed_expert_up_proj.weight": matrix(rng, hidden, width)}
    if latent_size and keys.get("latent_moe_use_norm"):
        out["routed_expert_norm.weight"] = norm(rng, width)
    make = expert if keys is PLAIN else matrix
    for i in range(n):
        out |= {f"experts.{i}.w1.weight": make(rng, inner, width), f"experts.{i}.w3.weight": make(rng, inner, width),
                f"experts.{i}.w2.weight": make(rng, width, inner)}
    shared = gated(rng, hidden, inner * keys["num_shared_experts"])
    return out | {f"shared_experts.{k}": x for k, x in shared.items()}


def weights(keys, seed):
    rng, out = np.random.default_rng(seed), {}
    hidden, vocab = keys["hidden_size"], keys["vocab_size"]
    out["model.embed_tokens.weight"] = on_grid(rng, (vocab, hidden), 1)
    for i in range(keys["num_hidden_layers"]):
        is_delta = i + 1 in keys["linear_attn_config"]["kda_layers"]
        is_dense = i < keys["first_k_dense_replace"] or i % keys["moe_layer_freq"]
        parts = {"self_attn.": (delta if is_delta else latent)(rng, keys)}
        parts |= {"mlp.": gated(rng, hidden, keys["intermediate_size"])} if is_dense else {"block_sparse_moe.": experts(rng, keys)}
        for name in ("input_layernorm", "post_attention_layernorm"):
            parts[name + "."] = {"weight": norm(rng, hidden)}
        for name in ("self_attention_res", "mlp_res") if keys.get("attn_res_block_size") else ():
            parts[name] = {"_norm.weight": norm(rng, hidden), "_proj.weight": 3 * matrix(rng, 1, hidden)}
        for at, part in parts.items():
            out |= {f"model.layers.{i}.{at}{k}": x for k, x in part.items()}
    out["model.norm.weight"] = norm(rng, hidden)
    if keys.get("attn_res_block_size"):
        out |= {"model.output_attn_res_norm.weight": norm(rng, hidden), "model.output_attn_res_proj.weight": 3 * matrix(rng, 1, hidden)}
    if not keys["tie_word_embeddings"]:
        out["lm_head.weight"] = matrix(rng, vocab, hidden)
    return out


def is_wide(name):
    return name.endswith(("A_log", "dt_bias", "correction_bias", "conv1d.weight", "o_norm.weight"))


def pack(tensors):
    """The experts in compressed-tensors' form."""
    out = {}
    for name, x in tensors.items():
        if ".experts." not in name:
            out[name] = x
            continue
        codes, scales = mx.quantize(x.astype(mx.float32), mode="mxfp4", group_size=32, bits=4)
        assert mx.array_equal(mx.dequantize(codes, scales, mode="mxfp4", group_size=32, bits=4), x)
        out[name + "_packed"], out[name + "_scale"] = codes.view(mx.uint8), scales
    return out


def write(name, keys, folder):
    folder.mkdir(parents=True, exist_ok=True)
    config, numbers = {"architectures": ["KimiK3ForConditionalGeneration"], "dtype": "bfloat16", "model_type": "kimi_k3",
                       "text_config": copy.deepcopy(keys)}, weights(keys, 42)
    tensors = {f"language_model.{k}": mx.array(x.astype(np.float32)).astype(mx.float32 if is_wide(k) else mx.bfloat16)
               for k, x in numbers.items()}
    if name == "k3-plain":
        tensors = pack(tensors)
        tensors["vision_tower.patch_embed.weight"] = mx.zeros((2, 2))
        config["text_config"]["quantization_config"] = MXFP4
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return numbers


def model_of(keys, numbers):
    model = kimi_k3.Model(kimi_k3.ModelArgs.from_dict({"model_type": "kimi_k3", "text_config": keys}))
    raw = {f"language_model.{k}": mx.array(x.astype(np.float32)) for k, x in numbers.items()}
    model.load_weights(list(model.sanitize(raw).items()), strict=True)
    return model


def states(model, keys, ids):
    """All residual streams after the embedding and after each layer; blocks that have not begun have the embedding."""
    inner = model.language_model.model
    x = inner.embed_tokens(mx.array([ids]))
    block = keys["attn_res_block_size"]
    n = -(-keys["num_hidden_layers"] // block)
    blocks, out = kimi_k3.ResidualBlocks(keys["rms_norm_eps"]), [[x[0]] * (1 + n)]
    first = x[0]
    mask = kimi_k3.create_attention_mask(x, None, return_array=True)
    for layer in inner.layers:
        x, blocks = layer(x, mask=None if layer.is_linear else mask, cache=None, blocks=blocks)
        kept = [b[0] for b in blocks.raw]
        out.append([x[0], *kept, *[first] * (n - len(kept))])
    return np.stack([np.concatenate([np.array(s) for s in one], -1) for one in out])


def outputs(name, keys, model):
    rng, out = np.random.default_rng(7), {}
    for case, n in enumerate(PROMPTS):
        ids, greedy, gap = rng.integers(3, keys["vocab_size"], n).tolist(), [], []
        logits = np.array(model(mx.array([ids]))[0])
        last, more = logits[-1], list(ids)
        for _ in range(GREEDY[case]):
            order = np.sort(last)
            greedy.append(int(np.argmax(last)))
            gap.append(order[-1] - order[-2])
            more.append(greedy[-1])
            last = np.array(model(mx.array([more]))[0, -1])
        part = {"tokens": np.array(ids, np.int32), "last_logits": logits[-1], "greedy": np.array(greedy, np.int32),
                "gap": np.array(gap, np.float32)}
        if n <= WHOLE:
            part["logits"] = logits
        if case == 0 and keys.get("attn_res_block_size"):
            part["hidden"] = states(model, keys, ids)
        out.update({f"case{case}.{k}": mx.array(x) for k, x in part.items()})
        print(name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap], flush=True)
    return out


def write_mlx(keys, numbers, folder):
    """The attention's matrices whose rows are no multiple of 64 stay in bfloat16."""
    model = model_of(keys, numbers)

    def takes(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % 64 or path.endswith("res_proj"):
            return False
        if "switch_mlp" in path:
            return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        return {"group_size": 64, "bits": 8 if path.endswith("mlp.gate") else 4}

    keep = {k: x for k, x in tree_flatten(model.parameters()) if is_kept(k)}
    model.set_dtype(mx.bfloat16)
    model.load_weights(list(keep.items()), strict=False)
    config = {"model_type": "kimi_k3", "text_config": copy.deepcopy(keys)}
    model, config = quantize_model(model, config, 64, 4, quant_predicate=takes)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_config(config, folder / "config.json")


def is_kept(name):
    return name.endswith(("A_log", "dt_bias", "correction_bias"))


def main():
    mx.set_default_device(mx.cpu)
    root, names = Path(sys.argv[1]), sys.argv[2:] or MODELS
    for name in names:
        keys = MODELS[name]
        numbers = write(name, keys, root / name)
        mx.save_safetensors(str(root / f"{name}.golden.safetensors"), outputs(name, keys, model_of(keys, numbers)))
        if name == "k3-plain":
            write_mlx(keys, numbers, root / "k3-mlx")


if __name__ == "__main__":
    main()
