#!/usr/bin/env python3
"""Writes kimilin-mlx and ling-mlx with mlx-lm: the numbers of kimilin-plain and ling-tiny, which 4 bits hold, and
compares mlx-lm's float32 logits with those models' outputs. See README.md.

usage: make_kda_mlx.py OUT_DIR
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import bailing_moe_v3, kimi_linear
from mlx_lm.utils import quantize_model, save_config, save_model
from random_models import with_dtype

HERE = Path(__file__).parent
MODELS = {"kimilin-mlx": ("kimilin-plain", kimi_linear), "ling-mlx": ("ling-tiny", bailing_moe_v3)}


def load(name, module):
    config = json.loads((HERE / name / "config.json").read_text())
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = model.sanitize(mx.load(str(HERE / name / "model.safetensors")))
    model.load_weights(list(weights.items()))
    return model, config


def compare(name, model):
    """The largest difference from transformers' outputs. Kimi-Linear's inner norm has its class's epsilon, 1e-6."""
    with_dtype(model, mx.float32)
    for layer in model.layers:
        attention = getattr(layer, "self_attn", None)
        if hasattr(attention, "kv_a_layernorm"):
            attention.kv_a_layernorm.eps = 1e-6
    golden = mx.load(str(HERE / f"{name}.golden.safetensors"))
    for case in range(4):
        want = np.array(golden[f"case{case}.last_logits"])
        logits = np.array(model(golden[f"case{case}.tokens"][None])[0, -1])
        print(name, case, float(np.abs(logits - want).max() / np.abs(want).max()))


def main():
    mx.set_default_device(mx.cpu)
    for to, (name, module) in MODELS.items():
        model, config = load(name, module)
        compare(name, model)
        model, config = load(name, module)
        with_dtype(model, mx.bfloat16)
        model, config = quantize_model(model, config, 64, 4, quant_predicate=getattr(model, "quant_predicate", None))
        folder = Path(sys.argv[1]) / to
        save_model(folder, model)
        save_config(config, folder / "config.json")


if __name__ == "__main__":
    main()
