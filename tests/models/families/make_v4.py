#!/usr/bin/env python3
"""Writes checkpoints of DeepSeek-V4 with transformers, random weights under the publisher's names, and their float32 outputs.
See README.md.

usage: make_v4.py OUT_DIR [NAME...]
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

sys.path.append(str(Path(__file__).parent))
from make_hf import NEAREST, on_grid, topk_by_index  # noqa: E402

COMMON = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 103,
    "hidden_size": 64,
    "hidden_act": "silu",
    "moe_intermediate_size": 64,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# The keys and options of the published file: a window alone, rows of 4 positions with an indexer, rows of 128; experts by the
# token's id; the last entry of compress_ratios is the layer of multi-token prediction.
PLAIN = COMMON | {
    "topk_method": "noaux_tc",
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128, 0],
    "num_hash_layers": 1,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "sliding_window": 128,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 40,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1},
    "num_nextn_predict_layers": 1,
}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}

# transformers' own keys: three heads of 20 channels in as many groups, rows of 2 and of 16 positions, a window of 9, three
# streams, five experts, clamps that are reached, angles without YaRN.
ODD = COMMON | {
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 3,
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 16},
    "mlp_layer_types": ["moe", "hash_moe", "moe"],
    "num_attention_heads": 3,
    "head_dim": 20,
    "q_lora_rank": 36,
    "o_groups": 3,
    "o_lora_rank": 28,
    "sliding_window": 9,
    "index_n_heads": 5,
    "index_head_dim": 16,
    "index_topk": 21,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 0.75,
    "swiglu_limit": 1.25,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-4,
    "rope_theta": 1000.0,
    "compress_rope_theta": 20000.0,
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.6},
        "compress": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.6},
    },
}

MODELS = {"v4-plain": PLAIN, "v4-odd": ODD}
SEEDS = {"v4-plain": 41, "v4-odd": 42}
PROMPTS = (1, 19, 65, 300, 2500)
GREEDY = (8, 8, 8, 4, 2)
STATES = 1  # tokens of the prompts whose hidden states are kept
WHOLE = 65  # longer prompts have their last logits only

PUBLISHED = [(r"^model\.", ""), (r"^lm_head\.", "head."), (r"^embed_tokens\.", "embed."), (r"^hc_head\.", "hc_head_"),
             (r"^hc_head_hc_", "hc_head_"), (r"\.attn_hc\.", ".hc_attn_"), (r"\.ffn_hc\.", ".hc_ffn_"),
             (r"\.self_attn\.", ".attn."), (r"\.mlp\.", ".ffn."), (r"\.input_layernorm\.", ".attn_norm."),
             (r"\.post_attention_layernorm\.", ".ffn_norm."), (r"\.sinks$", ".attn_sink"),
             (r"\.compressor\.indexer\.scorer\.", ".indexer."), (r"\.compressor\.indexer\.q_b_proj\.", ".indexer.wq_b."),
             (r"\.compressor\.indexer\.", ".indexer.compressor."), (r"(compressor\.)kv_norm\.", r"\1norm."),
             (r"\.position_bias$", ".ape"), (r"\.q_a_proj\.", ".wq_a."), (r"\.q_b_proj\.", ".wq_b."), (r"\.kv_proj\.", ".wkv."),
             (r"(compressor\.)gate_proj\.", r"\1wgate."), (r"\.o_a_proj\.", ".wo_a."), (r"\.o_b_proj\.", ".wo_b."),
             (r"\.q_a_norm\.", ".q_norm."), (r"\.gate\.e_score_correction_bias$", ".gate.bias"),
             (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."), (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
             (r"\.shared_experts\.up_proj\.", ".shared_experts.w3.")]


def fill(model, keys, seed):
    rng = np.random.default_rng(seed)
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(x.shape)
        if "inv_freq" in name:
            continue
        if name.endswith("tid2eid"):
            value = np.stack([rng.permutation(keys["n_routed_experts"])[:shape[1]] for _ in range(shape[0])])
        elif "norm" in name:
            value = 1 + np.round(12.8 * rng.standard_normal(shape)) / 128
        elif name.endswith("correction_bias"):
            value = np.round(16 * rng.standard_normal(shape)) / 128
        elif name.endswith("sinks"):
            value = np.round(48 * rng.standard_normal(shape)) / 32
        elif name.endswith("position_bias") or name.endswith("base"):
            value = np.round(16 * rng.standard_normal(shape)) / 32
        elif name.endswith("scale"):
            value = np.round(64 * (1 + 0.3 * rng.standard_normal(shape))) / 64
        elif name.endswith("mlp.gate.weight"):
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embed" in name:
            value = on_grid(rng, shape, 1, 4)
        else:
            size = 3 if "gate_proj" in name and "compressor" in name else 1
            value = on_grid(rng, shape, size / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value).to(torch.int64 if name.endswith("tid2eid") else torch.float32)


def is_float32(name):
    return any(x in name for x in ("hc_", ".ape", "attn_sink", "gate.bias"))


def published(model):
    """The tensors as the publisher names them."""
    out = {}
    for name, x in model.state_dict().items():
        for pattern, to in PUBLISHED:
            name = re.sub(pattern, to, name)
        x = x if not x.is_floating_point() or is_float32(name) else x.to(torch.bfloat16)
        if name.endswith("experts.gate_up_proj"):
            for i, both in enumerate(x):
                for w, half in zip(("w1", "w3"), both.chunk(2)):
                    out[name.replace("gate_up_proj", f"{i}.{w}.weight")] = half.contiguous()
        elif name.endswith("experts.down_proj"):
            for i, down in enumerate(x):
                out[name.replace("down_proj", f"{i}.w2.weight")] = down.contiguous()
        else:
            out[name] = x.contiguous()
    return out


def model_of(keys):
    keys = {k: v for k, v in keys.items() if k not in ("rope_scaling", "topk_method")}
    if "compress_ratios" in keys:
        part = keys["qk_rope_head_dim"] / keys["head_dim"]
        compress = YARN | {"rope_theta": 160000.0, "partial_rotary_factor": part, "attention_factor": 1.0}
        keys["rope_parameters"] = {"main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part},
                                   "compress": compress}
        keys["compress_ratios"] = keys["compress_ratios"][:keys["num_hidden_layers"]]
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**keys)).float().eval()
    model.set_attn_implementation("eager")
    return model


def write(name, keys, folder):
    model = model_of(keys)
    fill(model, keys, SEEDS[name])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = published(model)
    if "num_nextn_predict_layers" in keys:
        tensors["mtp.0.e_proj.weight"] = torch.zeros(64, 64, dtype=torch.bfloat16)
        tensors["mtp.0.attn.wkv.weight"] = torch.zeros(64, 64, dtype=torch.bfloat16)
    save_torch(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(keys | {"dtype": "bfloat16"}, indent=1, sort_keys=True) + "\n")
    return model


def outputs(model, name, keys):
    rng, out, hidden, layers = np.random.default_rng(7), {}, [], model.model.layers

    def logits_of(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    for case, n in enumerate(PROMPTS):
        ids, greedy, gap = rng.integers(3, keys["vocab_size"], n).tolist(), [], []
        hidden.clear()
        hooks = [layers[0].register_forward_pre_hook(lambda layer, args: hidden.append(args[0][0].numpy()))]
        hooks += [layer.register_forward_hook(lambda layer, args, result: hidden.append(result[0].numpy())) for layer in layers]
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
        part = {"tokens": np.array(ids, np.int32), "last_logits": logits[-1].copy(), "greedy": np.array(greedy, np.int32),
                "gap": np.array(gap, np.float32)}
        if n <= WHOLE:
            part["logits"] = logits
        if n <= STATES:
            part["hidden"] = np.stack(hidden).reshape(len(hidden), n, -1)  # all streams
        out.update({f"case{case}.{k}": v for k, v in part.items()})
        print(name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap],
              NEAREST.get(keys["index_topk"]), flush=True)
    return out


def main():
    torch.set_num_threads(1)
    torch.Tensor.topk = topk_by_index
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        model = write(name, MODELS[name], root / name)
        save_file(outputs(model, name, MODELS[name]), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
