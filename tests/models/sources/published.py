#!/usr/bin/env python3
"""Writes v4: DeepSeek-V4 with random weights as its publisher stores them, and transformers' float32 outputs. Matrices of attention
and of the shared expert are 8-bit floats with a power of two for blocks of 128 x 128; the routed experts' are 4-bit floats, two in
a byte, with a power of two for 32 columns. See README.md.

usage: published.py OUT_DIR
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

sys.path.append(str(Path(__file__).parent.parent / "families"))
import make_v4 as families  # noqa: E402

KEYS = families.PLAIN | {
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128, 0],
    "num_hash_layers": 1,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 64,
    "sliding_window": 32,
    "index_topk": 7,
    "n_routed_experts": 3,
    "index_n_heads": 2,
    "num_experts_per_tok": 2,
    "hc_mult": 2,
    "expert_dtype": "fp4",
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]},
}
FP8 = (".wq_a.", ".wq_b.", ".wkv.", ".wo_a.", ".wo_b.", ".shared_experts.")
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
BLOCK, GROUP = 128, 32


def e8m0(exponents):
    """Powers of two as their bytes."""
    return torch.from_numpy((exponents + 127).astype(np.uint8)).view(torch.float8_e8m0fnu)


def as_fp8(rng, x):
    """Returns codes, scales and the numbers that they stand for."""
    rows, cols = x.shape
    exponents = rng.integers(-3, 2, (-(-rows // BLOCK), -(-cols // BLOCK)))
    scale = np.repeat(np.repeat(2.0 ** exponents, BLOCK, 0), BLOCK, 1)[:rows, :cols].astype(np.float32)
    codes = torch.from_numpy(x / scale).to(torch.float8_e4m3fn)
    return codes, e8m0(exponents), codes.float().numpy() * scale


def as_fp4(rng, x):
    rows, cols = x.shape
    exponents = rng.integers(-5, -2, (rows, cols // GROUP))
    codes = rng.integers(0, 16, (rows, cols)).astype(np.uint8)
    packed = torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8))
    return packed, e8m0(exponents), E2M1[codes] * np.repeat(2.0 ** exponents, GROUP, 1).astype(np.float32)


def quantise(tensors):
    """Replaces matrices by codes and scales. Returns also what each stands for."""
    rng, out, numbers = np.random.default_rng(4), {}, {}
    for name, x in tensors.items():
        is_expert = ".ffn.experts." in name
        if not is_expert and (not any(part in name for part in FP8) or ".compressor." in name):
            out[name] = x
            continue
        codes, scales, numbers[name] = (as_fp4 if is_expert else as_fp8)(rng, x.float().numpy())
        out[name], out[name.replace(".weight", ".scale")] = codes, scales
    return out, numbers


def put_back(model, numbers):
    """Gives the model the numbers of the codes."""
    state = model.state_dict()
    names = {}
    for name in state:
        theirs = name
        for pattern, to in families.PUBLISHED:
            theirs = families.re.sub(pattern, to, theirs)
        names[theirs] = state[name]
    for name, x in numbers.items():
        x = torch.from_numpy(x)
        if ".ffn.experts." not in name:
            names[name].copy_(x)
            continue
        head, expert, w, _ = name.rsplit(".", 3)
        stack = names[f"{head}.{'down_proj' if w == 'w2' else 'gate_up_proj'}"][int(expert)]
        half = len(x)
        (stack if w == "w2" else stack[:half] if w == "w1" else stack[half:]).copy_(x)


def main():
    torch.set_num_threads(1)
    torch.Tensor.topk = families.topk_by_index
    root = Path(sys.argv[1]) / "v4"
    model = families.model_of({k: v for k, v in KEYS.items() if k != "quantization_config"})
    families.fill(model, KEYS, 43)
    tensors, numbers = quantise(families.published(model))
    put_back(model, numbers)
    (root / "hf").mkdir(parents=True, exist_ok=True)
    for name in ("mtp.0.e_proj.weight", "vision.x.weight", "layers.0.ffn.gate.bias"):
        tensors[name] = torch.zeros(4, 4, dtype=torch.bfloat16)
    save_torch(tensors, root / "hf" / "model.safetensors", {"format": "pt"})
    (root / "hf" / "config.json").write_text(json.dumps(KEYS | {"torch_dtype": "bfloat16"}, indent=1, sort_keys=True) + "\n")
    families.PROMPTS, families.GREEDY, families.WHOLE = (1, 19, 65, 140), (8, 8, 8, 4), 19
    save_file(families.outputs(model, "v4", KEYS), root / "golden.safetensors")


if __name__ == "__main__":
    main()
