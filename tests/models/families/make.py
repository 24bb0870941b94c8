#!/usr/bin/env python3
"""Writes the models of this folder with mlx-lm, and their float32 outputs. See README.md.

usage: make.py OUT_DIR [NAME...]; without names also OUT_DIR/../gptoss
"""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import deepseek_v3, deepseek_v32, glm4_moe, glm4_moe_lite, glm_moe_dsa, gpt_oss, kimi_k25, minimax, qwen3_next, rope_utils
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

sys.path.append(str(Path(__file__).parent.parent))
from random_models import outputs, weights_of, with_dtype  # noqa: E402

COMMON = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "vocab_size": 103,
    "eos_token_id": [1, 2],
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 2048,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

GLM = COMMON | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
}

# Biases without norms, an odd number of experts in one group, twelve heads over one, an odd group of channels.
GLM_ODD = GLM | {
    "rms_norm_eps": 1e-05,
    "head_dim": 20,
    "num_attention_heads": 12,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 7,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
}

# Biases and norms, two groups of experts, two shared experts, two dense layers.
GLM_PLAIN = GLM | {
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "head_dim": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "n_group": 2,
    "topk_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 2,
    "use_qk_norm": True,
}

NEXT = COMMON | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "attention_bias": False,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 64,
}

# Three value heads a key head, every third layer attention, 5 experts.
NEXT_ODD = NEXT | {
    "rms_norm_eps": 1e-06,
    "head_dim": 40,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "full_attention_interval": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 5,
    "partial_rotary_factor": 0.3,
}

# As many value heads as key heads.
NEXT_PLAIN = NEXT | {
    "rms_norm_eps": 1e-05,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "num_experts": 4,
}

# DeepSeek-V3's layers: 9 experts in one group, YaRN whose range is empty.
KIMI_ODD = COMMON | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "attention_bias": False,
    "rms_norm_eps": 1e-06,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 9,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.827,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 1.0,
                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}

# 12 experts, two shared ones, every layer with experts; YaRN as K2 has it, with scales that are not alike.
KIMI_PLAIN = KIMI_ODD | {
    "rms_norm_eps": 1e-05,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 0,
    "rope_theta": 1000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5},
}

# From K2.5 on: the text model of a larger one, whose configuration and tensors' names contain it. The second's text part has
# the type that transformers gives it.
KIMI25 = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
KIMI25_ODD = KIMI25 | {"text_config": KIMI_ODD | {"num_attention_heads": 5, "num_key_value_heads": 5}}
KIMI25_PLAIN = KIMI25 | {"text_config": KIMI_PLAIN | {"model_type": "deepseek_v3", "first_k_dense_replace": 1}}

GLM_LITE = COMMON | {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "attention_bias": False,
    "rope_theta": 1000000.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
}

# Five heads whose values are wider than their keys without the rotated part, 9 experts. The first layer is dense without being
# named so.
GLM_LITE_ODD = GLM_LITE | {
    "rms_norm_eps": 1e-05,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "num_hidden_layers": 3,
    "q_lora_rank": 192,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 16,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 9,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "routed_scaling_factor": 1.8,
}

# Two dense layers, two shared experts, two groups, keys wider than values.
GLM_LITE_PLAIN = GLM_LITE | {
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "q_lora_rank": 64,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 2,
    "topk_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 2,
}

# An indexer whose nine heads of 24 channels rotate halves of 16 of them, as its key says, and choose 21 positions; five experts.
GLM5_MLX = COMMON | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "attention_bias": False,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 5,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "index_n_heads": 9,
    "index_head_dim": 24,
    "index_topk": 21,
    "indexer_rope_interleave": False,
}

MINIMAX = COMMON | {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax",
    "rms_norm_eps": 1e-06,
    "shared_intermediate_size": 0,
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
}

# Six query heads over two key heads, part of the channels rotated, 7 experts.
MINIMAX_ODD = MINIMAX | {
    "intermediate_size": 64,
    "head_dim": 20,
    "rotary_dim": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 7,
    "attn_type_list": [1, 1],
}

# One head a key head, all channels rotated.
MINIMAX_PLAIN = MINIMAX | {
    "intermediate_size": 64,
    "head_dim": 64,
    "rotary_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "rope_theta": 5000000.0,
}

GPT_OSS = COMMON | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "intermediate_size": 64,
    "rms_norm_eps": 1e-05,
    "swiglu_limit": 7.0,
}

# A window of five positions in two of three layers, 7 experts, three query heads of 20 channels over each key head, YaRN whose
# range is not rounded.
GPT_OSS_ODD = GPT_OSS | {
    "head_dim": 20,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "num_local_experts": 7,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_theta": 150000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                     "beta_slow": 1.0, "truncate": False},
}

# A window of 40 positions, one key head for each query head, all channels as they are.
GPT_OSS_PLAIN = GPT_OSS | {
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
}

# name: config, module, its layers' class, dtype, bits, group; the mode if it is not affine
MODELS = {
    "glm-odd": (GLM_ODD, glm4_moe, glm4_moe.DecoderLayer, mx.bfloat16, 4, 64),
    "glm-plain": (GLM_PLAIN, glm4_moe, glm4_moe.DecoderLayer, mx.float16, 4, 32),
    "next-odd": (NEXT_ODD, qwen3_next, qwen3_next.Qwen3NextDecoderLayer, mx.bfloat16, 4, 32),
    "next-plain": (NEXT_PLAIN, qwen3_next, qwen3_next.Qwen3NextDecoderLayer, mx.float16, 4, 64),
    "kimi-odd": (KIMI_ODD, deepseek_v3, deepseek_v3.DeepseekV3DecoderLayer, mx.bfloat16, 4, 64),
    "kimi-plain": (KIMI_PLAIN, deepseek_v3, deepseek_v3.DeepseekV3DecoderLayer, mx.float16, 4, 32),
    "kimi25-odd": (KIMI25_ODD, kimi_k25, deepseek_v3.DeepseekV3DecoderLayer, mx.bfloat16, 4, 32),
    "kimi25-plain": (KIMI25_PLAIN, kimi_k25, deepseek_v3.DeepseekV3DecoderLayer, mx.float16, 4, 64),
    "glmlite-odd": (GLM_LITE_ODD, glm4_moe_lite, glm4_moe_lite.Glm4MoeLiteDecoderLayer, mx.bfloat16, 4, 32),
    "glmlite-plain": (GLM_LITE_PLAIN, glm4_moe_lite, glm4_moe_lite.Glm4MoeLiteDecoderLayer, mx.float16, 4, 64),
    "glm5-mlx": (GLM5_MLX, glm_moe_dsa, deepseek_v32.DeepseekV32DecoderLayer, mx.bfloat16, 4, 32),
    "minimax-odd": (MINIMAX_ODD, minimax, minimax.MiniMaxDecoderLayer, mx.bfloat16, 4, 64),
    "minimax-plain": (MINIMAX_PLAIN, minimax, minimax.MiniMaxDecoderLayer, mx.float16, 4, 32),
    "gptoss-odd": (GPT_OSS_ODD, gpt_oss, gpt_oss.TransformerBlock, mx.bfloat16, 4, 32, "mxfp4"),
    "gptoss-plain": (GPT_OSS_PLAIN, gpt_oss, gpt_oss.TransformerBlock, mx.float16, 4, 64),
}

# mlx-lm rounds the range of YaRN even where the configuration says truncate: false.
NOT_ROUNDED = SimpleNamespace(floor=lambda x: x, ceil=lambda x: x, log=math.log, pi=math.pi)

# As gpt-oss was published: experts in mxfp4 with the gate's and the up rows in turn, the rest bfloat16; and the same numbers as
# transformers keeps them where nothing is quantised, each row a column.
GPT_OSS_HF = GPT_OSS_ODD | {
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 9,
}

# Tokens of the prompts; the first case has logits and hidden states of all of them.
PROMPTS, GREEDY = (19, 1, 90), 10
LONGER = {"kimi25-odd", "kimi25-plain", "glmlite-odd", "glmlite-plain", "glm5-mlx"}


def experts_alone(path, module):
    """Formats without biases tell mlx no dtype but bfloat16: what is not an expert has 8 bits."""
    return True if "experts" in path else {"group_size": 64, "bits": 8}


def golden(path, layer, prompts=PROMPTS):
    """The model as it was written, in float32: codes stay, scales and everything else become float32."""
    model, _ = load_model(path)
    with_dtype(model, mx.float32)
    if layer is glm4_moe_lite.Glm4MoeLiteDecoderLayer:  # transformers leaves these at their class's default, mlx-lm does not
        for x in model.layers:
            x.self_attn.q_a_layernorm.eps = x.self_attn.kv_a_layernorm.eps = 1e-6
    if layer is deepseek_v32.DeepseekV32DecoderLayer:  # the original code's and transformers' epsilon; mlx-lm has its class's default
        for x in model.layers:
            x.self_attn.indexer.k_norm.eps = 1e-6
    return outputs(model, layer, COMMON["vocab_size"], prompts, GREEDY, 1)


def in_turn(gate, up):
    return mx.stack([gate, up], axis=2).reshape(gate.shape[0], 2 * gate.shape[1], *gate.shape[2:])


def published(model):
    """The tensors of both forms."""
    weights, codes, plain = dict(tree_flatten(model.parameters())), {}, {}
    for name, x in weights.items():
        if ".experts." not in name:
            codes[name] = plain[name] = x.astype(mx.bfloat16)
    for i in range(GPT_OSS_HF["num_hidden_layers"]):
        stem, parts, numbers = f"model.layers.{i}.mlp.experts.", {}, {}
        for proj in ("gate_proj", "up_proj", "down_proj"):
            w, s = mx.quantize(weights[f"{stem}{proj}.weight"].astype(mx.bfloat16), mode="mxfp4")
            blocks = w.view(mx.uint8)
            parts[proj] = blocks.reshape(*blocks.shape[:2], -1, 16), s, weights[f"{stem}{proj}.bias"].astype(mx.bfloat16)
            numbers[proj] = mx.dequantize(w, s, mode="mxfp4", dtype=mx.bfloat16).swapaxes(1, 2)
        for tail, both, down in zip(("_blocks", "_scales", "_bias"), zip(parts["gate_proj"], parts["up_proj"]),
                                    parts["down_proj"]):
            codes[f"{stem}gate_up_proj{tail}"], codes[f"{stem}down_proj{tail}"] = in_turn(*both), down
        for name in ("gate_up_proj_bias", "down_proj_bias"):
            plain[stem + name] = codes[stem + name]
        plain[f"{stem}gate_up_proj"] = in_turn(*(numbers[p].swapaxes(1, 2) for p in ("gate_proj", "up_proj"))).swapaxes(1, 2)
        plain[f"{stem}down_proj"] = numbers["down_proj"]
    return codes, plain


def write_published(to):
    config, rope_utils.math = GPT_OSS_HF, NOT_ROUNDED
    model = gpt_oss.Model(gpt_oss.ModelArgs.from_dict(config))
    model.update(weights_of(model))
    codes, plain = published(model)
    quantised = config | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    for name, tensors, c in (("mxfp4", codes, quantised), ("bf16", plain, config)):
        (to / name).mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(to / name / "model.safetensors"), {k: mx.contiguous(v) for k, v in tensors.items()},
                            metadata={"format": "pt"})
        save_config(dict(c), to / name / "config.json")
    mx.save_safetensors(str(to / "golden.safetensors"), golden(to / "mxfp4", gpt_oss.TransformerBlock))
    print(to)


def main():
    mx.set_default_device(mx.cpu)
    to = Path(sys.argv[1])
    if not sys.argv[2:]:
        write_published(to.parent / "gptoss")
    for name in sys.argv[2:] or MODELS:
        config, module, layer, dtype, bits, group, *mode = MODELS[name]
        rounded = (config.get("rope_scaling") or {}).get("truncate", True)
        rope_utils.math = math if rounded else NOT_ROUNDED
        model = module.Model(module.ModelArgs.from_dict(config))
        model.update(weights_of(model))
        with_dtype(model, dtype)
        model, config = quantize_model(model, config, group, bits, *mode, quant_predicate=experts_alone if mode else None)
        save_model(to / name, model)
        (to / name / "model.safetensors.index.json").unlink()
        save_config(config, to / name / "config.json")
        mx.save_safetensors(str(to / f"{name}.golden.safetensors"), golden(to / name, layer, (19, 1, 65, 300) if name in LONGER else PROMPTS))
        print(name)


main()
