#!/usr/bin/env python3
"""Writes checkpoints of GLM-5.3-Flash with transformers, random weights in bfloat16, and their float32 outputs. See README.md.

usage: make_glm53f.py OUT_DIR [NAME...]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

sys.path.append(str(Path(__file__).parent))
from make_hf import NEAREST, on_grid, topk_by_index  # noqa: E402

TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": [1, 2],
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "mhc": True,
    "mla_use_nope": True,
    "model_type": "glm5_next_text",
    "moe_intermediate_size": 64,
    "num_nextn_predict_layers": 1,
    "pad_token_id": None,
    "qk_rope_head_dim": 0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "vocab_size": 103,
}

# Every option as published, of four layers.
PLAIN = TEXT | {
    "first_k_dense_replace": 3,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hidden_size": 64,
    "index_head_dim": 32,
    "index_kpool": 16,
    "index_kpool_always_select_tail": True,
    "index_n_heads": 4,
    "index_topk": 2048,
    "intermediate_size": 64,
    "kv_lora_rank": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_attn_config": {"gate_lower_bound": -5.0, "head_dim": 32, "num_heads": 1, "safe_gate": True,
                           "short_conv_kernel_size": 4},
    "n_group": 1,
    "n_routed_experts": 5,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 1,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 10.0,
    "topk_group": 1,
    "v_head_dim": 64,
}

# As transformers writes it: flat keys. Three streams, three heads of 20 channels, decays without a bound, three taps, two
# groups of experts and two shared ones, weights that are not normalised, clamps that many activations reach, pools of four
# positions; the last layer uses the choice of the one before it.
ODD = TEXT | {
    "hc_eps": 1e-3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "hidden_size": 64,
    "index_head_dim": 20,
    "index_kpool": 4,
    "index_n_heads": 5,
    "index_topk": 24,
    "indexer_types": ["full", "full", "shared"],
    "intermediate_size": 68,
    "kv_lora_rank": 40,
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
    "linear_conv_kernel_dim": 3,
    "linear_head_dim": 20,
    "linear_lower_bound": None,
    "linear_num_heads": 3,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "n_group": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 3,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 36,
    "qk_nope_head_dim": 20,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 0.75,
    "topk_group": 1,
    "v_head_dim": 28,
}

# Two streams, one iteration, one pool of 64 positions, two taps. It is stored as ../gguf/glm5next.gguf alone: the rows of its
# matrices are whole blocks.
TWO = TEXT | {
    "first_k_dense_replace": 3,
    "hc_eps": 1e-6,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 1,
    "hidden_size": 64,
    "index_head_dim": 32,
    "index_kpool": 64,
    "index_n_heads": 3,
    "index_topk": 64,
    "intermediate_size": 64,
    "kv_lora_rank": 64,
    "layer_types": ["linear_attention"] * 3 + ["indexed_attention"],
    "linear_attn_config": {"gate_lower_bound": -0.5, "head_dim": 16, "num_heads": 2, "safe_gate": False,
                           "short_conv_kernel_size": 2},
    "n_routed_experts": 3,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 2,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 1.5,
    "v_head_dim": 32,
}

VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 8, "image_size": 4,
          "patch_size": 2, "projection_intermediate_size": 8}
MODELS = {"glm53f-plain": PLAIN, "glm53f-odd": ODD, "glm53f-two": TWO}
PROMPTS = (1, 19, 65, 300, 2500)
GREEDY = (8, 8, 8, 4, 2)
STATES = 1  # tokens of the prompts whose hidden states are kept
WHOLE = 19  # longer prompts have their last logits only


def fill(model):
    rng = np.random.default_rng(53)
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        shape = tuple(x.shape)
        if "visual" in name:
            value = 0.1 * rng.standard_normal(shape)
        elif "norm" in name and not name.endswith("bias"):
            value = 1 + 0.1 * rng.standard_normal(shape)
        elif name.endswith("A_log"):
            value = rng.uniform(-1, 1.5, shape)
        elif name.endswith("dt_bias"):
            value = rng.uniform(-4, 1, shape)
        elif name.endswith("bias"):
            value = 0.1 * rng.standard_normal(shape)
        elif name.endswith("_hc.scale"):
            value = rng.uniform(0.5, 1.5, shape)
        elif name.endswith("_hc.base") or name.endswith("compress_ape"):
            value = rng.standard_normal(shape)
        elif "conv1d" in name:
            value = 0.4 * rng.standard_normal(shape)
        elif "mlp.gate.weight" in name:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embed" in name:
            value = on_grid(rng, shape, 1, 4)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32)).to(x.dtype)


def write(name, keys, folder):
    config = Glm5NextConfig(text_config=dict(keys), vision_config=dict(VISION))
    model = Glm5NextForConditionalGeneration(config)
    fill(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    for other in folder.glob("generation_config.json"):
        other.unlink()
    if name != "glm53f-odd":
        tensors = load_file(folder / "model.safetensors")
        layer = f"model.language_model.layers.{keys['num_hidden_layers']}"
        tensors[layer + ".eh_proj.weight"] = torch.zeros(8, 16, dtype=torch.bfloat16)
        save_torch(tensors, folder / "model.safetensors", {"format": "pt"})
        whole = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "text_config": keys,
                 "tie_word_embeddings": False, "vision_config": VISION}
        (folder / "config.json").write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")


def outputs(folder, keys):
    model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rng, out, hidden = np.random.default_rng(7), {}, []
    layers = model.model.language_model.layers

    def see(layer, args, result):
        hidden.append(result[0][0].numpy())
        return result

    def logits_of(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    for case, n in enumerate(PROMPTS):
        ids = rng.integers(3, keys["vocab_size"], n).tolist()
        greedy, gap = [], []
        hidden.clear()
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
            part["hidden"] = np.stack(hidden).reshape(len(hidden), n, -1)  # all streams
        out.update({f"case{case}.{k}": v for k, v in part.items()})
        near = NEAREST.get(keys["index_topk"] // keys["index_kpool"])
        print(folder.name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap], near, flush=True)
    return out


def main():
    torch.set_num_threads(1)
    torch.Tensor.topk = topk_by_index
    torch.manual_seed(1)
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        write(name, MODELS[name], root / name)
        save_file(outputs(root / name, MODELS[name]), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
