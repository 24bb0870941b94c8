#!/usr/bin/env python3
"""Writes MiniMax-M3, Step-3.5 and MiMo-V2 in small with transformers, random weights in bfloat16, and their float32 outputs;
with MLX as the first argument, compares mlx-lm's outputs with them. See README.md.

usage: make_win.py [MLX] OUT_DIR [NAME...]
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch, save_file as save_torch

from make_hf import on_grid

COMMON = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "hidden_size": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "vocab_size": 103,
}

# Every key of the published file that changes the text model, with its values wherever they are no sizes.
M3_PLAIN = COMMON | {
    "attention_output_gate": False,
    "dense_intermediate_size": 128,
    "head_dim": 16,
    "hidden_act": "swigluoai",
    "intermediate_size": 64,
    "model_type": "minimax_m3_vl_text",
    "moe_layer_freq": [0, 1],
    "n_shared_experts": 1,
    "num_attention_heads": 8,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_local_experts": 5,
    "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head",
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000,
    "rotary_dim": 8,
    "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 64,
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1],
        "sparse_block_size": 128,
        "sparse_index_dim": 16,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_num_index_heads": 4,
        "sparse_score_type": "max",
        "sparse_topk_blocks": 16,
        "use_sparse_attention": True,
    },
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
}

# As transformers writes it, with a vision part. Heads of 20 channels, three key heads, blocks of eight positions of which four
# are seen, a limit that bends, a shared expert of another width, a layer without an indexer in between.
M3_ODD = COMMON | {
    "dense_intermediate_size": 68,
    "eos_token_id": [1, 2],
    "head_dim": 20,
    "index_block_size": 8,
    "index_head_dim": 28,
    "index_n_heads": 3,
    "index_topk_blocks": 4,
    "intermediate_size": 64,
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "num_attention_heads": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "num_local_experts": 4,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.3},
    "rotary_dim": 6,
    "routed_scaling_factor": 1.5,
    "shared_intermediate_size": 128,
    "swiglu_limit": 0.5,
}

# Every key of the published file that changes the model: lists that go on with layers for multi-token prediction, more heads in
# layers with a window, angles of Llama 3 in the others, clamps in the last layer.
STEP_PLAIN = COMMON | {
    "attention_other_setting": {"attention_type": "sliding_attention", "head_dim": 16, "num_attention_groups": 2,
                                "num_attention_heads": 6, "true_head_dim": 16},
    "head_dim": 16,
    "intermediate_size": 128,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "model_type": "step3p5",
    "moe_intermediate_size": 64,
    "moe_layers_enum": "1,2,3",
    "moe_num_experts": 4,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "moe_top_k": 3,
    "norm_expert_weight": True,
    "num_attention_groups": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 2.0, "high_freq_factor": 32.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 1024, "rope_type": "llama3"},
    "rope_theta": [5000000.0, 10000.0, 10000.0, 5000000.0],
    "share_expert_dim": 64,
    "sink": False,
    "sliding_window": 40,
    "swiglu_limits": [0.0, 0.0, 0.7, 0.0],
    "swiglu_limits_shared": [0.0, 0.0, 1.6, 0.0],
    "use_head_wise_attn_gate": True,
    "use_moe_router_bias": True,
    "use_qk_norm": True,
    "yarn_only_types": ["full_attention"],
}

# As transformers writes Step-3.7, with a vision part. Heads of 20 channels, five experts, a window of nine positions, fewer
# heads in layers with it, the last two layers dense, a shared expert of another width, no clamps.
STEP_ODD = COMMON | {
    "eos_token_id": [1, 2],
    "head_dim": 20,
    "intermediate_size": 68,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "dense", "dense"],
    "moe_intermediate_size": 64,
    "moe_router_scaling_factor": 1.5,
    "n_routed_experts": 5,
    "num_attention_heads": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "num_sliding_attention_heads": 3,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
    },
    "share_expert_dim": 128,
    "sliding_window": 9,
}

# Every key of the published file that changes the model.
MIMO_PLAIN = COMMON | {
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "attention_projection_layout": "split",
    "attention_value_scale": 0.707,
    "head_dim": 24,
    "hidden_act": "silu",
    "hybrid_layer_pattern": [0, 1],
    "intermediate_size": 128,
    "layernorm_epsilon": 1e-5,
    "model_type": "mimo_v2_flash",
    "moe_intermediate_size": 64,
    "moe_layer_freq": [0, 1],
    "n_group": 1,
    "n_routed_experts": 5,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 40,
    "sliding_window_size": 40,
    "swa_head_dim": 24,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 16,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 16,
}

# As transformers writes it. Heads of 20 channels with values of twelve, two groups of experts, a window of nine positions in the
# first layer, weights that are not normalised, no factor of the values.
MIMO_ODD = COMMON | {
    "attention_value_scale": None,
    "eos_token_id": [1, 2],
    "head_dim": 20,
    "intermediate_size": 68,
    "layer_types": ["sliding_attention", "full_attention"],
    "mlp_layer_types": ["sparse", "dense"],
    "moe_intermediate_size": 64,
    "n_group": 2,
    "n_routed_experts": 4,
    "norm_topk_prob": False,
    "num_attention_heads": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.3},
    },
    "routed_scaling_factor": 1.5,
    "sliding_window": 9,
    "topk_group": 1,
    "v_head_dim": 12,
}

MODELS = {"m3-plain": M3_PLAIN, "m3-odd": M3_ODD, "step-plain": STEP_PLAIN, "step-odd": STEP_ODD, "mimo-plain": MIMO_PLAIN,
          "mimo-odd": MIMO_ODD}
ARCHITECTURES = {"m3-plain": "MiniMaxM3SparseForConditionalGeneration", "step-plain": "Step3p5ForCausalLM",
                 "mimo-plain": "MiMoV2FlashForCausalLM"}
SEEDS = {}
PROMPTS = (1, 19, 65, 300, 2500)
GREEDY = (8, 8, 8, 4, 2)
STATES = 1  # tokens of the prompts whose hidden states are kept
WHOLE = 19  # longer prompts have their last logits only
NEAREST = []  # distances of the last score that an indexer chose to the next one, of the largest's size


def topk_of_blocks(self, k, dim=-1, **how):
    """Tensor.topk that notes how near the choice of an indexer's blocks is to a tie."""
    values, indices = torch.topk(self, k, dim=dim, **how)
    if self.dim() == 4 and k < self.shape[-1]:
        order = self.sort(dim=-1, descending=True).values
        last, after = order[..., k - 1], order[..., k]
        seen = torch.isfinite(last) & torch.isfinite(after)
        if seen.any():
            NEAREST.append(float(((last - after) / last.abs())[seen].min()))
    return torch.return_types.topk((values, indices))


def fill(model, name):
    rng = np.random.default_rng(SEEDS.get(name, 38))
    is_less_one = not name.startswith("mimo")
    for key, x in [*model.named_parameters(), *model.named_buffers()]:
        shape = tuple(x.shape)
        if "inv_freq" in key or "vision" in key or "projector" in key:
            continue
        if "norm" in key:
            value = (not is_less_one) + np.round(12.8 * rng.standard_normal(shape)) / 128
        elif key.endswith("correction_bias"):
            value = np.round(16 * rng.standard_normal(shape)) / 128
        elif key.endswith("sinks"):
            value = np.round(192 * rng.standard_normal(shape)) / 128
        elif "mlp.gate.weight" in key:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embed" in key:
            value = on_grid(rng, shape, 1, 4)
        elif "index" in key:
            value = on_grid(rng, shape, 2 / np.sqrt(shape[-1]), 4)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32)).to(x.dtype)


def model_of(name, keys):
    from transformers import (MiMoV2FlashConfig, MiMoV2FlashForCausalLM, MiniMaxM3SparseForConditionalGeneration,
                              MiniMaxM3VLConfig, Step3p7Config, Step3p7ForConditionalGeneration)
    keys = {k: v for k, v in keys.items() if k not in ("model_type", "sliding_window_size")}
    if name.startswith("m3"):
        vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                  "image_size": 28, "patch_size": 14}
        return MiniMaxM3SparseForConditionalGeneration(
            MiniMaxM3VLConfig(text_config=keys, vision_config=vision, projector_hidden_size=16))
    if name.startswith("step"):
        names = {"moe_num_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok",
                 "num_attention_groups": "num_key_value_heads"}
        keys = {names.get(k, k): v for k, v in keys.items()}
        vision = {"width": 16, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14, "mlp_ratio": 1.0}
        return Step3p7ForConditionalGeneration(Step3p7Config(text_config=keys, vision_config=vision))
    if name == "mimo-plain":  # transformers takes these from its own default, and counts the token itself in the window
        keys |= {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.334}},
            "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]}
    return MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**keys))


def in_float32(model):
    """The numbers of the file, computed in float32."""
    exact = {k: x.clone() for k, x in model.named_buffers() if "inv_freq" in k}
    model.to(torch.bfloat16).to(torch.float32)
    for key, x in model.named_buffers():
        if key in exact:
            x.data = exact[key]
    return model.eval()


def write(name, keys, folder):
    model = model_of(name, keys)
    model.set_attn_implementation("eager")
    fill(model, name)
    model = in_float32(model)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    for key, x in narrow.named_buffers():
        if key.endswith("correction_bias"):
            x.data = x.data.float()
    narrow.save_pretrained(folder)
    for other in folder.glob("generation_config.json"):
        other.unlink()
    tensors = load_torch(folder / "model.safetensors")
    if name == "step-plain":  # a layer for multi-token prediction
        tensors["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128, dtype=torch.bfloat16)
    save_torch({k: x for k, x in tensors.items() if "vision" not in k or k.endswith("layers.0.self_attn.out_proj.bias")},
               folder / "model.safetensors", {"format": "pt"})
    if name.endswith("plain"):
        published = keys | {"dtype": "bfloat16"}
        if name.startswith("m3"):
            published = {"model_type": "minimax_m3_vl", "text_config": published}
        published["architectures"] = [ARCHITECTURES[name]]
        (folder / "config.json").write_text(json.dumps(published, indent=1, sort_keys=True) + "\n")
    return model


def outputs(name, keys, model):
    rng, out, hidden = np.random.default_rng(7), {}, []
    inner = model.model
    layers = (inner if hasattr(inner, "layers") else inner.language_model).layers

    def see(layer, args, result):
        hidden.append((result[0] if isinstance(result, tuple) else result)[0].numpy())
        return result

    def logits_of(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    for case, n in enumerate(PROMPTS):
        ids, greedy, gap = rng.integers(3, keys["vocab_size"], n).tolist(), [], []
        hidden.clear()
        NEAREST.clear()
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
        print(name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap], min(NEAREST, default=None),
              flush=True)
    return out


def compare(name, root):
    """mlx-lm's logits of the same numbers."""
    import mlx.core as mx
    from mlx_lm.models import mimo_v2_flash, minimax_m3_vl, step3p5
    module = {"m3": minimax_m3_vl, "step": step3p5, "mimo": mimo_v2_flash}[name.split("-")[0]]
    config = json.loads((root / name / "config.json").read_text())
    model = module.Model(module.ModelArgs.from_dict(config))
    raw = {k: x.astype(mx.float32) for k, x in mx.load(str(root / name / "model.safetensors")).items() if "vi" not in k}
    if name.startswith("mimo"):
        for part in ("gate_proj", "up_proj", "down_proj"):
            for layer in range(config["num_hidden_layers"]):
                at = f"model.layers.{layer}.mlp"
                own = [raw.pop(f"{at}.experts.{e}.{part}.weight") for e in range(config["n_routed_experts"])
                       if f"{at}.experts.{e}.{part}.weight" in raw]
                if own:
                    raw[f"{at}.switch_mlp.{part}.weight"] = mx.stack(own)
    weights = model.sanitize(raw)
    model.load_weights(list(weights.items()), strict=True)
    golden = load_file(root / f"{name}.golden.safetensors")
    for case in range(len(PROMPTS)):
        logits = np.array(model(mx.array([golden[f"case{case}.tokens"].tolist()]))[0].astype(mx.float32))
        want = golden[f"case{case}.last_logits"]
        print(name, len(golden[f"case{case}.tokens"]), float(np.abs(logits[-1] - want).max() / np.abs(want).max()), flush=True)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    is_mlx = sys.argv[1] == "MLX"
    root, names = Path(sys.argv[1 + is_mlx]), sys.argv[2 + is_mlx:] or MODELS
    torch.Tensor.topk = topk_of_blocks
    for name in names:
        if is_mlx:
            compare(name, root)
        else:
            model = write(name, MODELS[name], root / name)
            save_file(outputs(name, MODELS[name], model), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
