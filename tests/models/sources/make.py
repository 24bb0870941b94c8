#!/usr/bin/env python3
"""Writes the models of this folder: as trained (hf) and as MLX has them (mlx), and mlx-lm's float32 outputs. See README.md.

usage: make.py OUT_DIR
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import deepseek_v3, qwen3_5, qwen3_5_moe

sys.path.append(str(Path(__file__).parent.parent))
from random_models import outputs  # noqa: E402

QWEN = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "linear_conv_kernel_dim": 4,
        "eos_token_id": [1, 2],
        "vocab_size": 103,
        "hidden_size": 192,
        "num_hidden_layers": 4,
        "full_attention_interval": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    },
    "eos_token_id": [1, 2],
}

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "attention_bias": False,
    "num_mtp_layers": 0,
    "rope_interleave": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "vocab_size": 103,
    "hidden_size": 192,
    "intermediate_size": 320,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 6,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 128,
    "q_lora_rank": 192,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "max_position_embeddings": 2560,
}

GROUP = 64
# Tokens of the prompts; the first case has logits and hidden states of all of them.
PROMPTS, GREEDY = (19, 1, 66), 10


def qwen_shapes():
    c = QWEN["text_config"]
    hidden, inner, experts = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, head = c["linear_num_value_heads"], c["linear_value_head_dim"]
    mixed = 2 * keys + heads * head
    query, key = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{i}."
        if kind == "linear_attention":
            out |= {at + "linear_attn." + k: v for k, v in {
                "dt_bias": (heads,), "A_log": (heads,), "conv1d.weight": (mixed, 1, 4), "norm.weight": (head,),
                "out_proj.weight": (hidden, heads * head), "in_proj_qkv.weight": (mixed, hidden),
                "in_proj_z.weight": (heads * head, hidden), "in_proj_b.weight": (heads, hidden),
                "in_proj_a.weight": (heads, hidden)}.items()}
        else:
            out |= {at + "self_attn." + k + ".weight": v for k, v in {
                "q_proj": (2 * query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden),
                "o_proj": (hidden, query), "q_norm": (c["head_dim"],), "k_norm": (c["head_dim"],)}.items()}
        shared = c["shared_expert_intermediate_size"]
        out |= {at + k: v for k, v in {
            "mlp.gate.weight": (experts, hidden), "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
            "mlp.experts.down_proj": (experts, hidden, inner),
            "mlp.shared_expert.gate_proj.weight": (shared, hidden),
            "mlp.shared_expert.up_proj.weight": (shared, hidden),
            "mlp.shared_expert.down_proj.weight": (hidden, shared), "mlp.shared_expert_gate.weight": (1, hidden),
            "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}.items()}
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (c["vocab_size"], hidden)}


def deepseek_shapes():
    c = DEEPSEEK
    hidden, inner, experts, heads = (c[k] for k in ("hidden_size", "moe_intermediate_size", "n_routed_experts",
                                                    "num_attention_heads"))
    nope, rope, value, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out |= {at + "self_attn." + k + ".weight": v for k, v in {
            "q_a_proj": (c["q_lora_rank"], hidden), "q_a_layernorm": (c["q_lora_rank"],),
            "q_b_proj": (heads * (nope + rope), c["q_lora_rank"]), "kv_a_proj_with_mqa": (rank + rope, hidden),
            "kv_a_layernorm": (rank,), "kv_b_proj": (heads * (nope + value), rank),
            "o_proj": (hidden, heads * value)}.items()}
        dense = i < c["first_k_dense_replace"]
        if not dense:
            out |= {at + "mlp.gate.weight": (experts, hidden), at + "mlp.gate.e_score_correction_bias": (experts,),
                    at + "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
                    at + "mlp.experts.down_proj": (experts, hidden, inner)}
        mlp, wide = ("mlp.", c["intermediate_size"]) if dense else ("mlp.shared_experts.", inner)
        out |= {at + mlp + "gate_proj.weight": (wide, hidden), at + mlp + "up_proj.weight": (wide, hidden),
                at + mlp + "down_proj.weight": (hidden, wide), at + "input_layernorm.weight": (hidden,),
                at + "post_attention_layernorm.weight": (hidden,)}
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (c["vocab_size"], hidden)}


PLUS_1 = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight",
          "k_norm.weight")


def weights_of(shapes, is_qwen):
    """Random numbers of the sizes that trained models have."""
    rng, out = np.random.default_rng(152), {}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            x = 0.1 * x + (0 if is_qwen and name.endswith(PLUS_1) else 1)
        elif name.endswith(("A_log", "dt_bias")):
            x = np.clip(x, -2, 1)
        elif name.endswith("correction_bias"):
            x *= 0.1
        elif "conv1d" in name:
            x *= 0.4
        elif "embed_tokens" not in name:
            x *= (1.4 if is_qwen else 0.7) / np.sqrt(shape[-1])
        wide = name.endswith(("A_log", "correction_bias"))
        out[name] = mx.array(x.astype(np.float32)).astype(mx.float32 if wide else mx.bfloat16)
    return out


def quantise(w, bits):
    """[..., columns] as codes, scales and biases; the codes are those that are best with the rounded scale and bias."""
    x = np.array(w.astype(mx.float32)).reshape(*w.shape[:-1], -1, GROUP)
    most = np.float32(2**bits - 1)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    from_low = np.abs(low) > np.abs(high)
    edge = np.where(from_low, low, high)
    scale = np.maximum((high - low) / most, np.float32(1e-7)) * np.where(from_low, np.float32(1), np.float32(-1))
    steps = np.rint(edge / scale)
    scale = np.where(steps != 0, edge / np.where(steps != 0, steps, 1), scale)
    scale, bias = mx.array(scale).astype(mx.bfloat16), mx.array(np.where(steps != 0, edge, 0)).astype(mx.bfloat16)
    codes = np.rint((x - np.array(bias.astype(mx.float32))) / np.array(scale.astype(mx.float32)))
    codes = np.clip(codes, 0, most).astype(np.uint32).reshape(*w.shape[:-1], -1, 32 // bits)
    words = np.bitwise_or.reduce(codes << np.arange(0, 32, bits, dtype=np.uint32), -1)
    return mx.array(words), scale[..., 0], bias[..., 0]


def to_mlx(hf, config):
    """The checkpoint under MLX's names in 4 bits, Qwen's routers in 8, and its configuration."""
    is_qwen, out, special = "text_config" in config, {}, {}

    def linear(base, w):
        bits = 8 if is_qwen and base.endswith(("mlp.gate", "mlp.shared_expert_gate")) else 4
        if bits == 8:
            special[base] = {"group_size": GROUP, "bits": 8}
        out[base + ".weight"], out[base + ".scales"], out[base + ".biases"] = quantise(w, bits)

    for name, w in hf.items():
        name = ("language_model." if is_qwen else "") + name
        if name.endswith("experts.gate_up_proj"):
            base, half = name[: -len("experts.gate_up_proj")] + "switch_mlp.", w.shape[1] // 2
            linear(base + "gate_proj", w[:, :half])
            linear(base + "up_proj", w[:, half:])
        elif name.endswith("experts.down_proj"):
            linear(name.replace("experts.", "switch_mlp."), w)
        elif "conv1d" in name:
            out[name] = w.reshape(w.shape[0], -1, 1)
        elif w.ndim == 1 and is_qwen and name.endswith(PLUS_1):
            out[name] = (w.astype(mx.float32) + 1).astype(mx.bfloat16)
        elif w.ndim == 2 and (is_qwen or not name.endswith("mlp.gate.weight")):
            linear(name[: -len(".weight")], w)
        else:
            out[name] = w
    return out, config | {"quantization": {"group_size": GROUP, "bits": 4, "mode": "affine"} | special}


def golden(mlx, config, module, layer):
    """The outputs of the numbers that the codes stand for, in float32."""
    plain = {}
    for name, w in mlx.items():
        base = name.removesuffix(".weight")
        if base + ".scales" in mlx:
            scales, biases = (mlx[base + k].astype(mx.float32) for k in (".scales", ".biases"))
            bits = w.shape[-1] * 32 // (scales.shape[-1] * GROUP)
            plain[name] = mx.dequantize(w, scales, biases, group_size=GROUP, bits=bits)
        elif not name.endswith((".scales", ".biases")):
            plain[name] = w.astype(mx.float32)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(list(model.sanitize(plain).items()))
    vocab = config.get("text_config", config)["vocab_size"]
    return outputs(model, layer, vocab, PROMPTS, GREEDY, 1)


def write(to, config, shards):
    """Files of tensors with the index that names them, and the configuration."""
    to.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{len(shards):05}" if len(shards) > 1 else "model" for i in range(len(shards))]
    where = {}
    for name, tensors in zip(names, shards):
        mx.save_safetensors(str(to / f"{name}.safetensors"), tensors)
        where |= {t: f"{name}.safetensors" for t in tensors}
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (to / "config.json").write_text(json.dumps(config, indent=1))


def main():
    mx.set_default_device(mx.cpu)
    for name, config, shapes, module, layer in (
        ("qwen", QWEN, qwen_shapes(), qwen3_5_moe, qwen3_5.DecoderLayer),
        ("deepseek", DEEPSEEK, deepseek_shapes(), deepseek_v3, deepseek_v3.DeepseekV3DecoderLayer),
    ):
        to = Path(sys.argv[1]) / name
        hf = weights_of(shapes, name == "qwen")
        mlx, mlx_config = to_mlx(hf, config)
        tensors = list(hf.items())
        half = len(tensors) // 2
        write(to / "hf", config, [dict(tensors[:half]), dict(tensors[half:])])
        write(to / "mlx", mlx_config, [mlx])
        mx.save_safetensors(str(to / "golden.safetensors"), golden(mlx, config, module, layer))


main()
