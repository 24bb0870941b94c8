#!/usr/bin/env python3
"""Writes published checkpoints with transformers, random weights in bfloat16, and their float32 outputs. See README.md.

usage: make_hf.py OUT_DIR [NAME...]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch
from transformers import AutoModelForCausalLM, DeepseekV32Config, DeepseekV32ForCausalLM
from transformers import Gemma4Config, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4TextConfig
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, Qwen4ExpConfig, Qwen4ExpForCausalLM
from transformers import Qwen4ExpForConditionalGeneration, Qwen4ExpTextConfig

# The keys of Qwen3.8-Flash-Next's configuration.
QWEN4 = {
    "vocab_size": 103,
    "hidden_size": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": True,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": None,
    "mamba_ssm_dtype": "float32",
}

# The published shape in small: a table in the second layer, all streams and heads as powers of two.
QWEN4_PLAIN = QWEN4 | {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "hc_count": 4,
    "hc_lowrank": 64,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 300,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "output_gate_type": "sigmoid",
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 128,
    "indexer_compress_ratio": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
}

# Three streams, a low rank that groups of 64 do not divide, tables in two layers with 2-grams to 4-grams, five experts,
# heads of 40 channels of which 12 are rotated, blocks of two positions, the output gate left out, a vision part, and a
# layer for multi-token prediction.
QWEN4_ODD = QWEN4 | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 40,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "hc_count": 3,
    "hc_lowrank": 20,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 72,
    "ple_conv_kernel_size": 3,
    "ngram_size": 4,
    "heads_per_ngram": 3,
    "ngram_vocab_size_base": 100,
    "make_ngram_vocab_size_divisible_by": 10,
    "split_ngram_parts": 3,
    "seed": 99,
    "eos_token_id": [2, 1],
    "indexer_n_heads": 3,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 20,
    "indexer_budget": 62,
    "indexer_compress_ratio": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100000.0,
        "partial_rotary_factor": 0.3,
        "mrope_interleaved": True,
        "mrope_section": [2, 2, 2],
    },
}

# The keys of Gemma 4 26B-A4B's configuration.
GEMMA4 = {
    "vocab_size": 103,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "enable_moe_block": True,
    "moe_intermediate_size": 64,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}

# The published options: heads of 256 and 512 channels, values that are keys in the global layer, of whose channels a quarter is
# rotated, a softcap of 30.
GEMMA4_PLAIN = GEMMA4 | {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "sliding_window": 40,
    "num_experts": 6,
    "top_k_experts": 3,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": "vision",
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}

# A width whose root bfloat16 rounds, heads of 20 and 36 channels, matrices for values in all layers, a dense part of 68
# channels, three experts, no softcap, a factor of the global layers' positions, a vision part.
GEMMA4_ODD = GEMMA4 | {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rms_norm_eps": 1e-5,
    "hidden_size": 128,
    "intermediate_size": 68,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "global_head_dim": 36,
    "attention_k_eq_v": False,
    "sliding_window": 9,
    "num_experts": 3,
    "top_k_experts": 2,
    "final_logit_softcapping": None,
    "eos_token_id": [2, 1],
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.3, "rope_theta": 50000.0, "rope_type": "proportional", "factor": 2.0},
        "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"},
    },
}

GEMMA4_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 2,
    "position_embedding_size": 16,
}

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "patch_size": 4,
}

# The keys of GLM-5.3's configuration, with its values wherever they are no sizes.
GLM5 = {
    "vocab_size": 103,
    "hidden_size": 64,
    "hidden_act": "silu",
    "head_dim": 16,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "pad_token_id": None,
    "eos_token_id": [1, 2],
    "rope_parameters": {"rope_type": "default", "rope_theta": 8000000.0},
}
PUBLISHED = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "rope_interleave": True,
             "ep_size": 1, "pretraining_tp": 1, "num_nextn_predict_layers": 1}

# The published shape in small: a layer without an indexer after two that have one, a layer for multi-token prediction.
GLM5_PLAIN = GLM5 | {
    "num_hidden_layers": 3,
    "indexer_types": ["full", "full", "shared"],
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 3,
    "index_n_heads": 12,
    "index_head_dim": 32,
    "index_topk": 40,
}

# Every other layer has an indexer by its period, seven heads of 20 channels, of which 12 are rotated; every layer but the
# last has experts, of which there are seven; three heads.
GLM5_ODD = GLM5 | {
    "num_hidden_layers": 3,
    "index_topk_freq": 2,
    "index_skip_topk_offset": 1,
    "mlp_layer_types": ["sparse", "sparse", "dense"],
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 36,
    "kv_lora_rank": 52,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "head_dim": 12,
    "v_head_dim": 28,
    "n_shared_experts": 2,
    "n_routed_experts": 7,
    "num_experts_per_tok": 2,
    "index_n_heads": 7,
    "index_head_dim": 20,
    "index_topk": 23,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

# DeepSeek-V3.2's options: YaRN, experts in groups, an indexer in every layer that rotates halves of its channels.
DEEPSEEK32 = GLM5 | {
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "n_group": 4,
    "topk_group": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "index_n_heads": 12,
    "index_head_dim": 24,
    "index_topk": 33,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64,
                        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}

MODELS = {"qw4-plain": QWEN4_PLAIN, "qw4-odd": QWEN4_ODD, "glm5-plain": GLM5_PLAIN, "glm5-odd": GLM5_ODD,
          "gemma4-plain": GEMMA4_PLAIN, "gemma4-odd": GEMMA4_ODD, "dsv32": DEEPSEEK32}
SEEDS = {"glm5-plain": 39, "glm5-odd": 38, "dsv32": 38}  # by which no choice of an indexer is near to a tie
PROMPTS = (1, 19, 65, 300, 2500)
GREEDY = (8, 8, 8, 4, 2)
STATES = 19  # tokens of the prompts whose hidden states are kept
WHOLE = 300  # longer prompts have their last logits only


def on_grid(rng, shape, size, bits):
    """Codes times a power of two: the numbers are the same after a conversion to that many bits in groups of 32 or 64."""
    low = -(1 << (bits - 1))
    codes = rng.integers(low, -low, shape).reshape(-1, shape[-1])
    for group in range(0, shape[-1] // 32 * 32, 32):
        first, second = rng.choice(32, 2, replace=False)
        codes[:, group + first], codes[:, group + second] = low, -low - 1
    step = 2.0 ** np.round(np.log2(size / (-low / np.sqrt(3))))
    return (codes * step).reshape(shape)


def fill(model, seed=38):
    """Random numbers of the sizes that trained models have. Norms are multiples of 1 / 128, so that 1 + w is a bfloat16."""
    rng = np.random.default_rng(seed)
    is_less_one = not hasattr(model.config, "kv_lora_rank")
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(x.shape)
        if "inv_freq" in name or "ngram" in name and not x.is_floating_point():
            continue
        if name.endswith("linear_attn.norm.weight") or "norm.weight" in name and not is_less_one:
            value = 1 + np.round(12.8 * rng.standard_normal(shape)) / 128
        elif name.endswith("correction_bias"):
            value = np.round(16 * rng.standard_normal(shape)) / 128
        elif "norm" in name:
            value = np.round(12.8 * rng.standard_normal(shape)) / 128
        elif name.endswith("A_log"):
            value = rng.uniform(-1, 1, shape)
        elif name.endswith("dt_bias"):
            value = rng.uniform(-2, 0, shape)
        elif "conv1d" in name:
            value = 0.4 * rng.standard_normal(shape)
        elif "mlp.gate.weight" in name or "shared_expert_gate" in name:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 8)
        elif "embed" in name:
            value = on_grid(rng, shape, 1, 4)
        elif "input_mix_weight_up" in name or "block_inject" in name:
            value = on_grid(rng, shape, 3 / np.sqrt(shape[-1]), 4)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32))


def fill_gemma4(model):
    """Does so for Gemma 4. Its attention has no scale but the norms of queries and keys."""
    rng = np.random.default_rng(4)
    tensors = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if "layer_scalar" in k}
    for name, x in tensors.items():
        shape = tuple(x.shape)
        if "q_norm" in name or "k_norm" in name:
            value = (32 + np.round(6 * rng.standard_normal(shape))) / 128
        elif name.endswith(("model.norm.weight", "language_model.norm.weight")):  # logits that the softcap bends
            value = 3 + np.round(25 * rng.standard_normal(shape)) / 64
        elif "norm" in name or name.endswith(("router.scale", "per_expert_scale", "layer_scalar")):
            value = 1 + np.round(25 * rng.standard_normal(shape)) / 128
        elif "router.proj" in name:
            value = on_grid(rng, shape, 1, 8)
        else:
            value = on_grid(rng, shape, 1 / np.sqrt(shape[-1]), 4)
        x.data = torch.from_numpy(value.astype(np.float32))


def round_embedding_scale(model):
    """The published models run in bfloat16, which rounds the factor of the embedding."""
    for module in model.modules():
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale).to(torch.bfloat16).float()


def exact_frequencies(model):
    """Rotary frequencies of Gemma 4 that are rounded once. Powers in float32 are off by an ulp, which at position 2,500 makes
    angles wrong by 2e-4, and many of 256 channels turn fast."""
    for module in model.modules():
        if type(module).__name__ != "Gemma4TextRotaryEmbedding":
            continue
        for kind in module.layer_types:
            rope, dim = module.config.rope_parameters[kind], module.config.per_layer_config[kind].head_dim
            f = rope["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim) / rope.get("factor", 1.0)
            if rope["rope_type"] == "proportional":
                f[int(rope.get("partial_rotary_factor", 1.0) * dim // 2):] = 0
            own = getattr(module, kind + "_inv_freq")
            assert torch.allclose(f.float(), own, rtol=1e-6)
            own.copy_(f)


NEAREST = {}  # the least distance of the last score that is chosen to the next one, of their size, by k


def topk_by_index(self, k, dim=-1, **_):
    """Tensor.topk where the lower index wins a tie; PyTorch does not say which. Index scores of zero are ties."""
    values, indices = self.sort(dim=dim, descending=True, stable=True)
    if k < self.shape[dim]:
        last, after = values.narrow(dim, k - 1, 1), values.narrow(dim, k, 1)
        is_seen = (after > -1e30) & (last != after)
        gap = ((last - after) / values.narrow(dim, 0, 1).abs())[is_seen]
        NEAREST[k] = min([NEAREST.get(k, 1.0), *gap.flatten().tolist()])
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


def write(name, keys, folder):
    if name == "gemma4-odd":
        text = Gemma4TextConfig(**keys).to_dict()
        model = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=GEMMA4_VISION))
    elif name == "gemma4-plain":
        model = Gemma4ForCausalLM(Gemma4TextConfig(**keys))
    elif name == "qw4-odd":
        text = Qwen4ExpTextConfig(**keys).to_dict()
        model = Qwen4ExpForConditionalGeneration(Qwen4ExpConfig(text_config=text, vision_config=VISION))
    elif name.startswith("glm5"):
        model = GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**keys))
    elif name == "dsv32":
        model = DeepseekV32ForCausalLM(DeepseekV32Config(**keys))
    else:
        model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**keys))
    if name.startswith("gemma4"):
        fill_gemma4(model)
    else:
        fill(model, SEEDS.get(name, 38))
    model.to(torch.bfloat16)
    for tensor, x in model.named_buffers():
        if tensor.endswith("correction_bias"):
            x.data = x.data.float()
    model.save_pretrained(folder)
    for other in folder.glob("generation_config.json"):
        other.unlink()
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    if "layer_types" in keys:
        text["layer_types"] = keys["layer_types"]  # names of the published file
    elif not name.startswith("gemma4"):
        text |= PUBLISHED
        for key in ("layer_types", "indexer_types", "mlp_layer_types"):
            if key not in keys:
                text.pop(key, None)
    if name == "glm5-plain":
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128, dtype=torch.bfloat16)
        tensors["model.layers.3.self_attn.indexer.wk.weight"] = torch.zeros(32, 64, dtype=torch.bfloat16)
        save_torch(tensors, folder / "model.safetensors", {"format": "pt"})
    if name == "gemma4-plain":  # the keys of the published file
        del text["per_layer_config"]
        text |= {k: keys[k] for k in ("global_head_dim", "num_global_key_value_heads")}
    if name == "qw4-odd":
        text["mtp_num_hidden_layers"] = 1
        tensors = load_file(folder / "model.safetensors")
        tensors["mtp.fc.weight"] = torch.zeros(64, 128, dtype=torch.bfloat16)
        tensors["mtp.layers.0.input_layernorm.weight"] = torch.zeros(64, dtype=torch.bfloat16)
        save_torch(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def outputs(folder, keys):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    round_embedding_scale(model)
    exact_frequencies(model)
    rng, out = np.random.default_rng(7), {}

    layers, hidden = (model.model if hasattr(model.model, "layers") else model.model.language_model).layers, []

    def see(layer, args, result):
        hidden.append((result[0] if isinstance(result, tuple) else result)[0].numpy())
        return result

    def logits_of(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    for case, n in enumerate(PROMPTS):
        ids = rng.integers(3, keys["vocab_size"], n)
        ids[rng.random(n) < 0.03] = 1
        ids[rng.random(n) < 0.03] = 2
        ids, greedy, gap = ids.tolist(), [], []
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
            part["hidden"] = np.stack(hidden)  # all streams
        out.update({f"case{case}.{k}": v for k, v in part.items()})
        near = NEAREST.get(keys.get("index_topk"))
        print(folder.name, n, float(np.abs(logits).max()), greedy, [round(float(g), 3) for g in gap], near, flush=True)
    return out


def main():
    torch.set_num_threads(1)
    torch.Tensor.topk = topk_by_index
    torch.manual_seed(1)
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        folder = root / name
        write(name, MODELS[name], folder)
        save_file(outputs(folder, MODELS[name]), root / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
