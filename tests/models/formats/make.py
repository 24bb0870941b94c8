#!/usr/bin/env python3
"""Writes the models of this folder with mlx and mlx-lm, and their float32 outputs. See README.md.

usage: make.py OUT_DIR
"""

import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.convert import mixed_quant_predicate_builder
from mlx_lm.models import deepseek_v3, qwen3_5, qwen3_5_moe
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

sys.path.append(str(Path(__file__).parent.parent))
from random_models import outputs, weights_of, with_dtype  # noqa: E402

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
        "vocab_size": 259,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "intermediate_size": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "layer_types": ["linear_attention", "full_attention"] * 2,
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
    "eos_token_id": 1,
    "vocab_size": 259,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 2560,
}

# config, module, its layers' class, size of weights: small where rounding would grow from layer to layer
FAMILIES = {
    "qwen": (QWEN, qwen3_5_moe, qwen3_5.DecoderLayer, 1.4),
    "deepseek": (DEEPSEEK, deepseek_v3, deepseek_v3.DeepseekV3DecoderLayer, 0.7),
}

PROMPTS, GREEDY = (24, 5), 8


# A layer's tensors in all ways at once: the formats in turn, gate_proj and up_proj alike.
EACH = [
    {"bits": bits, "group_size": group, "mode": "affine"} for group in (32, 64, 128) for bits in (2, 3, 4, 5, 6, 8)
] + [
    {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]


def every_format():
    at = [0, None]

    def predicate(path, module):
        if path.endswith("q_proj") or path.endswith("layers.0.linear_attn.out_proj"):
            return False
        if path.endswith("up_proj"):
            return at[1]
        chosen = dict(EACH[at[0] % len(EACH)])
        while module.weight.shape[-1] % chosen["group_size"]:
            at[0] += 1
            chosen = dict(EACH[at[0] % len(EACH)])
        at[0] += 1
        if path.endswith("gate_proj"):
            at[1] = chosen
        return chosen

    return predicate


# name: dtype, then what mlx_lm.convert takes: --q-bits, --q-group-size, --q-mode, --quant-predicate
MODELS = {
    "q2-g32-f16": (mx.float16, 2, 32, "affine", None),
    "q3-g32": (mx.bfloat16, 3, 32, "affine", None),
    "q5-g128-f32": (mx.float32, 5, 128, "affine", None),
    "mixed-3-6": (mx.bfloat16, None, None, "affine", "mixed_3_6"),
    "mxfp4": (mx.bfloat16, None, None, "mxfp4", None),
    "mxfp8": (mx.bfloat16, None, None, "mxfp8", None),
    "nvfp4": (mx.bfloat16, None, None, "nvfp4", None),
    "every-f16": (mx.float16, 4, 32, "affine", every_format),
    "deepseek-mixed-2-6": (mx.float16, None, 32, "affine", "mixed_2_6"),
    "deepseek-nvfp4": (mx.bfloat16, None, None, "nvfp4", None),
}


def family(name):
    return FAMILIES["deepseek" if name.startswith("deepseek") else "qwen"]


def quantise(name, dtype, bits, group, mode, predicate):
    config, module, _, size = family(name)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(weights_of(model, size))
    with_dtype(model, dtype)
    if isinstance(predicate, str):
        predicate = mixed_quant_predicate_builder(predicate, model, group or 64)
    elif predicate:
        predicate = predicate()
    model, config = quantize_model(model, config, group, bits, mode=mode, quant_predicate=predicate)
    for path, part in model.named_modules() if name == "every-f16" else ():
        if hasattr(part, "to_quantized"):
            config["quantization"][path] = False  # as files have it that were quantised in parts
    return model, config


def embed_f32(self, x):
    """Modes without biases give bfloat16 rows by default."""
    biases = self.biases[x] if self.get("biases") is not None else None
    return mx.dequantize(self.weight[x], self.scales[x], biases, group_size=self.group_size, bits=self.bits,
                         mode=self.mode, dtype=mx.float32)


def golden(path, layer):
    """The model as it was written, in float32: codes stay, scales and everything else become float32."""
    model, _ = load_model(path)
    with_dtype(model, mx.float32)
    nn.QuantizedEmbedding.__call__ = embed_f32
    return outputs(model, layer, 259, PROMPTS, GREEDY, len(PROMPTS))


def formats():
    """Two rows of numbers in every format, and what mx.dequantize makes of them in float32."""
    mx.random.seed(5)
    rows, out = mx.random.normal((2, 256)) * 0.7 + 0.1, {}
    for dtype, name in ((mx.bfloat16, "BF16"), (mx.float16, "F16"), (mx.float32, "F32")):
        for group in (32, 64, 128):
            for bits in (2, 3, 4, 5, 6, 8):
                w, s, b = mx.quantize(rows.astype(dtype), group_size=group, bits=bits)
                values = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group_size=group, bits=bits)
                key = f"affine.{bits}.{group}.{name}"
                out.update({f"{key}.weight": w, f"{key}.scales": s, f"{key}.biases": b, f"{key}.values": values})
    for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
        w, s = mx.quantize(rows, group_size=group, bits=bits, mode=mode)
        values = mx.dequantize(w, s, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
        key = f"{mode}.{bits}.{group}.U8"
        out.update({f"{key}.weight": w, f"{key}.scales": s, f"{key}.values": values})
    return out


def small_floats():
    """Rows that bfloat16 and float16 have exactly, of many sizes, with ties and zeros, and what mx.quantize makes of them."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((48, 32)) * np.exp2(np.repeat(rng.integers(-12, 8, (48, 2)), 16, 1))
    x[:4] = np.round(x[:4] * 8 / np.abs(x[:4]).max() * 4) / 8
    x[4:7, ::3] = 0
    x[7], x[8, 3:], x[9:12] = 0, 0, x[9:12] * 2.0 ** -14
    x[12:16, 5] *= 40
    exponent = np.floor(np.log2(np.abs(x) + 1e-30))
    step = np.exp2(np.maximum(exponent - 7, -24))
    rows = mx.array((np.round(x / step) * step).astype(np.float32))
    out = {"rows.values": rows}
    for dtype, name in ((mx.bfloat16, "BF16"), (mx.float16, "F16"), (mx.float32, "F32")):
        assert mx.array_equal(rows.astype(dtype).astype(mx.float32), rows)
        for mode in ("mxfp4", "mxfp8", "nvfp4"):
            w, s = mx.quantize(rows.astype(dtype), mode=mode)
            out.update({f"{mode}.{name}.weight": w, f"{mode}.{name}.scales": s})
    return out


def main():
    mx.set_default_device(mx.cpu)
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    for name, how in MODELS.items():
        model, config = quantise(name, *how)
        save_model(to / name, model)
        save_config(config, to / name / "config.json")
        mx.save_safetensors(str(to / f"{name}.golden.safetensors"), golden(to / name, family(name)[2]))
        print(name)
    mx.save_safetensors(str(to / "rows.safetensors"), formats())
    mx.save_safetensors(str(to / "small-floats.safetensors"), small_floats())


main()
