#!/usr/bin/env python3
"""Writes kimi/hf, experts of 4 bits as compressed-tensors packs them and Kimi-K2.5 was published, and
mlx-lm's float32 outputs of the numbers that they stand for. See README.md.

usage: packed.py OUT_DIR
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from mlx_lm.models import deepseek_v3
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).parent.parent))
from random_models import outputs  # noqa: E402

GROUP = 32
TEXT = {
    "model_type": "kimi_k2",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "kv_lora_rank": 64,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 7,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 3,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 64,
    "vocab_size": 103,
}
CODES = {
    "config_groups": {"group_0": {
        "input_activations": None, "output_activations": None, "targets": ["Linear"],
        "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": GROUP,
                    "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
                    "symmetric": True, "type": "int"}}},
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "eos_token_id": 1,
    "model_type": "kimi_k25",
    "text_config": TEXT | {"quantization_config": CODES},
    "tie_word_embeddings": False,
    "vision_config": {"hidden_size": 8},
}
# Tokens of the prompts; the first case has logits and hidden states of all of them.
PROMPTS, GREEDY = (19, 1, 65, 300), 10


def shapes():
    c = TEXT
    hidden, inner, heads = c["hidden_size"], c["moe_intermediate_size"], c["num_attention_heads"]
    nope, rope, value, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                                                    "kv_lora_rank"))
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out |= {at + "self_attn." + k + ".weight": v for k, v in {
            "q_a_proj": (c["q_lora_rank"], hidden), "q_a_layernorm": (c["q_lora_rank"],),
            "q_b_proj": (heads * (nope + rope), c["q_lora_rank"]),
            "kv_a_proj_with_mqa": (rank + rope, hidden),
            "kv_a_layernorm": (rank,), "kv_b_proj": (heads * (nope + value), rank),
            "o_proj": (hidden, heads * value)}.items()}
        dense = i < c["first_k_dense_replace"]
        mlps = {"mlp.": c["intermediate_size"]} if dense else {"mlp.shared_experts.": inner}
        if not dense:
            out |= {at + "mlp.gate.weight": (c["n_routed_experts"], hidden),
                    at + "mlp.gate.e_score_correction_bias": (c["n_routed_experts"],)}
            mlps |= {f"mlp.experts.{e}.": inner for e in range(c["n_routed_experts"])}
        for mlp, wide in mlps.items():
            out |= {at + mlp + "gate_proj.weight": (wide, hidden),
                    at + mlp + "up_proj.weight": (wide, hidden),
                    at + mlp + "down_proj.weight": (hidden, wide)}
        out |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,)}
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (c["vocab_size"], hidden)}


def packed(x, rng):
    """The three tensors of a matrix, and its numbers. A few scales are extreme."""
    groups = x.reshape(x.shape[0], -1, GROUP)
    scale = torch.tensor(np.abs(groups).max(-1) / 7.5, dtype=torch.float32).to(torch.bfloat16)
    for value in (0.0, 1e-40, 2e-38):
        scale[rng.integers(scale.shape[0]), rng.integers(scale.shape[1])] = value
    wide = scale.to(torch.float32).numpy()[..., None]
    nearest = np.rint(groups / np.maximum(wide, 1e-30))
    codes = np.where(wide > 1e-30, nearest, rng.integers(-8, 8, groups.shape))
    codes = np.clip(codes, -8, 7).astype(np.int8)
    numbers = (codes.astype(np.float32) * wide).reshape(x.shape)
    return {"weight_packed": pack_to_int32(torch.tensor(codes.reshape(x.shape)), 4), "weight_scale": scale,
            "weight_shape": torch.tensor(x.shape)}, numbers


def main():
    mx.set_default_device(mx.cpu)
    rng, tensors, plain = np.random.default_rng(153), {}, {}
    for name, shape in shapes().items():
        x = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            x = 1 + 0.1 * x
        elif name.endswith("correction_bias"):
            x *= 0.1
        elif "embed_tokens" not in name:
            x /= np.sqrt(shape[-1])
        x = x.astype(np.float32)
        if ".mlp.experts." in name:
            parts, numbers = packed(x, rng)
            tensors |= {"language_model." + name.removesuffix("weight") + k: v for k, v in parts.items()}
        else:
            wide = name.endswith("correction_bias")
            own = torch.tensor(x).to(torch.float32 if wide else torch.bfloat16)
            tensors["language_model." + name], numbers = own, own.to(torch.float32).numpy()
        plain[name] = mx.array(numbers)
    tensors["vision_tower.patch_embed.proj.weight"] = torch.ones(8, 8)
    tensors["mm_projector.proj.0.weight"] = torch.ones(8, 8)
    to = Path(sys.argv[1]) / "kimi"
    (to / "hf").mkdir(parents=True, exist_ok=True)
    save_file(tensors, to / "hf" / "model.safetensors", metadata={"format": "pt"})
    (to / "hf" / "config.json").write_text(json.dumps(CONFIG, indent=1))
    model = deepseek_v3.Model(deepseek_v3.ModelArgs.from_dict(TEXT))
    model.load_weights(list(model.sanitize(plain).items()))
    found = outputs(model, deepseek_v3.DeepseekV3DecoderLayer, TEXT["vocab_size"], PROMPTS, GREEDY, 1)
    mx.save_safetensors(str(to / "golden.safetensors"), found)


main()
