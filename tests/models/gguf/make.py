#!/usr/bin/env python3
"""Writes the GGUF files of this folder and what they stand for. See README.md.

usage: make.py OUT_DIR [NAME...]; names: only these models, the others' outputs stay
"""

import ctypes
import glob
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import mlx.core as mx
import numpy as np
import xllamacpp
from gguf.quants import dequantize
from mlx_lm.models import rope_utils
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file

TYPE = gguf.GGMLQuantizationType
VOCAB = 272
EXPERTS, TOP_K = 3, 2
MERGES = ["h e", "l l", "Ġ t", "Ġt he", "o Ġ", "1 2"]

ggml = ctypes.PyDLL(glob.glob(os.path.dirname(xllamacpp.__file__) + "/*.so")[0])
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t


def quantise(x, kind):
    """By llama.cpp's own code."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros(x.shape[:-1] + (x.shape[-1] // block * size,), np.uint8)
    ggml.ggml_quantize_init(ctypes.c_int(kind))
    ggml.ggml_quantize_chunk(
        ctypes.c_int(kind), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0),
        ctypes.c_int64(x.size // x.shape[-1]), ctypes.c_int64(x.shape[-1]), None)
    return out


def byte_alphabet():
    """Of byte-level BPE: a character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return [chr(b) if b in kept else chr(256 + others.index(b)) for b in range(256)]


class Model:
    """A file being written, and the same numbers under Hugging Face's names."""

    def __init__(self, path, arch, kinds, split=0):
        self.w = gguf.GGUFWriter(path, arch, split_max_tensors=split)
        self.kinds = kinds
        self.rng = np.random.default_rng(len(arch))
        self.hf = {}

    def put(self, name, shape, plus=0.0, x=None):
        """A tensor of the first type in `kinds` whose key is in the name; returns what it stands for."""
        if x is None:
            x = self.rng.standard_normal(shape) * (0.2 if len(shape) == 1 else 1 / np.sqrt(shape[-1])) + plus
        x = np.ascontiguousarray(x, np.float32)
        kind = next((k for part, k in self.kinds if part in name), "F32") if len(shape) > 1 else "F32"
        if shape[-1] % gguf.GGML_QUANT_SIZES[TYPE[kind]][0]:
            raise SystemExit(f"{name}: {shape} as {kind}")
        if kind == "F32":
            self.w.add_tensor(name, x)
            return x
        packed = quantise(x, TYPE[kind])
        self.w.add_tensor(name, packed, raw_dtype=TYPE[kind])
        return dequantize(packed, TYPE[kind]).astype(np.float32)

    def tokenizer(self, pre):
        tokens = byte_alphabet() + [m.replace(" ", "") for m in MERGES]
        kinds = [1] * len(tokens)
        for text, kind in (("<|end|>", 3), ("<|eot|>", 3), ("<think>", 4), ("</think>", 4)):
            tokens.append(text)
            kinds.append(kind)
        while len(tokens) < VOCAB:
            tokens.append(f"[PAD{len(tokens)}]")
            kinds.append(5)
        self.w.add_tokenizer_model("gpt2")
        self.w.add_tokenizer_pre(pre)
        self.w.add_token_list(tokens)
        self.w.add_token_types(kinds)
        self.w.add_token_merges(MERGES)
        self.w.add_eos_token_id(262)
        self.w.add_eot_token_id(263)
        self.w.add_chat_template("{% for m in messages %}{{ m.content }}<|eot|>{% endfor %}")

    def common(self, c, layers, norm=True, tied=False):
        self.w.add_block_count(layers)
        self.w.add_context_length(c["max_position_embeddings"])
        self.w.add_embedding_length(c["hidden_size"])
        self.w.add_head_count(c["num_attention_heads"])
        self.w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        self.w.add_expert_count(EXPERTS)
        self.w.add_expert_used_count(TOP_K)
        self.w.add_expert_feed_forward_length(c["inner"])
        self.w.add_rope_freq_base(c["rope_theta"])
        hidden = c["hidden_size"]
        self.hf["model.embed_tokens.weight"] = self.put("token_embd.weight", (VOCAB, hidden))
        if norm:
            self.hf["model.norm.weight"] = self.put("output_norm.weight", (hidden,), 1)
        if not tied:
            self.hf["lm_head.weight"] = self.put("output.weight", (VOCAB, hidden))

    def norms(self, i, hidden, second="ffn_norm"):
        self.hf[f"model.layers.{i}.input_layernorm.weight"] = self.put(f"blk.{i}.attn_norm.weight", (hidden,), 1)
        self.hf[f"model.layers.{i}.post_attention_layernorm.weight"] = self.put(f"blk.{i}.{second}.weight", (hidden,), 1)

    def attention(self, i, c, gated=False, biased=False, norm="head"):
        heads, kv, dim, hidden = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["hidden_size"]
        blk, ours = f"blk.{i}.", f"model.layers.{i}.self_attn."
        for x, n in (("q", heads * (1 + gated)), ("k", kv), ("v", kv)):
            self.hf[f"{ours}{x}_proj.weight"] = self.put(f"{blk}attn_{x}.weight", (n * dim, hidden))
            if biased:
                self.hf[f"{ours}{x}_proj.bias"] = self.put(f"{blk}attn_{x}.bias", (n * dim,))
        self.hf[f"{ours}o_proj.weight"] = self.put(f"{blk}attn_output.weight", (hidden, heads * dim))
        for x, n in (("q", heads), ("k", kv)) if norm else ():
            size = n * dim if norm == "all" else dim
            self.hf[f"{ours}{x}_norm.weight"] = self.put(f"{blk}attn_{x}_norm.weight", (size,), 1)

    def mlp(self, i, hidden, inner, tail, ours):
        for x in ("gate", "up", "down"):
            shape = (hidden, inner) if x == "down" else (inner, hidden)
            self.hf[f"model.layers.{i}.mlp.{ours}{x}_proj.weight"] = self.put(f"blk.{i}.ffn_{x}{tail}.weight", shape)

    def experts(self, i, hidden, inner, name="mlp.experts.{}.{}_proj.weight", parts=("gate", "up", "down"), fused=False):
        """fused: the gate's rows above the up rows, in one tensor."""
        both = self.put(f"blk.{i}.ffn_gate_up_exps.weight", (EXPERTS, 2 * inner, hidden)) if fused else None
        for x, part in zip(("gate", "up", "down"), parts):
            shape = (EXPERTS, hidden, inner) if x == "down" else (EXPERTS, inner, hidden)
            if fused and x != "down":
                stack = both[:, :inner] if x == "gate" else both[:, inner:]
            else:
                stack = self.put(f"blk.{i}.ffn_{x}_exps.weight", shape)
            for e in range(EXPERTS):
                self.hf[f"model.layers.{i}." + name.format(e, part)] = stack[e]

    def router(self, i, hidden, ours="mlp.gate", bias=None):
        self.hf[f"model.layers.{i}.{ours}.weight"] = self.put(f"blk.{i}.ffn_gate_inp.weight", (EXPERTS, hidden))
        if bias:
            self.hf[f"model.layers.{i}.{bias}"] = self.put(f"blk.{i}.exp_probs_b.bias", (EXPERTS,))

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


BASE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_size": 64, "inner": 64,
        "num_hidden_layers": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "max_position_embeddings": 512, "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1, "rope_scaling": None}


def add_heads(m, c):
    m.w.add_head_count_kv(c["num_key_value_heads"])
    m.w.add_key_length(c["head_dim"])
    m.w.add_value_length(c["head_dim"])


def qwen3moe(path, kinds=(("gate_exps", "Q4_K"), ("up_exps", "Q5_K"))):
    """K-quants, whose rows are 256 columns; gate and up of different types."""
    c = BASE | {"model_type": "qwen3_moe", "hidden_size": 256, "num_experts": EXPERTS, "moe_intermediate_size": 64,
                "intermediate_size": 64, "num_hidden_layers": 1}
    m = Model(path, "qwen3moe", [("token_embd", "Q4_0"), ("attn_output", "Q8_0"), ("output", "IQ4_XS"), ("attn_q.", "Q4_K"),
                                 ("attn_k.", "Q5_K"), ("attn_v.", "F16"), *kinds, ("down_exps", "Q8_0")])
    m.tokenizer("qwen2")
    m.common(c, 1)
    add_heads(m, c)
    m.norms(0, 256)
    m.attention(0, c)
    m.router(0, 256)
    m.experts(0, 256, 64)
    m.close()
    return m.hf, c


def qwen3moe_even(path):
    """Gate and up of one type, as files have them that are used in place."""
    return qwen3moe(path, (("gate_exps", "Q3_K"), ("up_exps", "Q3_K")))


def grouped(x, keys, per, unit, axis=0):
    """Heads as llama.cpp's files of Qwen3.5 have them, to those of the model's own: by key heads."""
    x = np.moveaxis(x, axis, 0)
    y = x.reshape(per, keys, unit, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return np.moveaxis(y, 0, axis)


def hybrid(path, arch, kinds):
    keys, per, dim, taps, hidden = 2, 3, 32, 4, 64
    values = keys * per
    own = arch == "qwen35moe"
    c = BASE | {"model_type": "qwen3_next", "num_experts": EXPERTS, "moe_intermediate_size": 64, "intermediate_size": 64,
                "shared_expert_intermediate_size": 64, "linear_num_key_heads": keys, "linear_num_value_heads": values,
                "linear_key_head_dim": dim, "linear_value_head_dim": dim, "linear_conv_kernel_dim": taps,
                "full_attention_interval": 2, "partial_rotary_factor": 0.25}
    m = Model(path, arch, kinds)
    m.tokenizer("qwen35" if own else "qwen2")
    m.common(c, 2)
    add_heads(m, c)
    m.w.add_expert_shared_feed_forward_length(64)
    m.w.add_rope_dimension_count(8)
    m.w.add_ssm_conv_kernel(taps)
    m.w.add_ssm_state_size(dim)
    m.w.add_ssm_group_count(keys)
    m.w.add_ssm_time_step_rank(values)
    m.w.add_ssm_inner_size(values * dim)
    m.w.add_uint32(arch + ".full_attention_interval", 2)
    if own:
        m.w.add_rope_dimension_sections([2, 1, 1, 0])
    order = (lambda x, unit, axis=0: grouped(x, keys, per, unit, axis)) if own else (lambda x, unit, axis=0: x)
    both, first = 2 * keys * dim, keys * dim
    for i in range(2):
        blk, la = f"blk.{i}.", f"model.layers.{i}.linear_attn."
        m.norms(i, hidden, "post_attention_norm")
        if i == 1:
            m.attention(i, c, gated=True)
        else:
            qkv, z = m.put(blk + "attn_qkv.weight", (both + values * dim, hidden)), m.put(blk + "attn_gate.weight", (values * dim, hidden))
            q, k, v = qkv[:first], qkv[first:both], order(qkv[both:], dim)
            if own:
                m.hf[la + "in_proj_qkv.weight"] = np.concatenate([q, k, v])
                m.hf[la + "in_proj_z.weight"] = order(z, dim)
                m.hf[la + "in_proj_b.weight"] = order(m.put(blk + "ssm_beta.weight", (values, hidden)), 1)
                m.hf[la + "in_proj_a.weight"] = order(m.put(blk + "ssm_alpha.weight", (values, hidden)), 1)
            else:
                m.hf[la + "in_proj_qkvz.weight"] = np.concatenate([x.reshape(keys, -1, hidden) for x in (q, k, v, z)], 1).reshape(-1, hidden)
                m.hf[la + "in_proj_ba.weight"] = m.put(blk + "ssm_ba.weight", (2 * values, hidden))
            conv = m.put(blk + "ssm_conv1d.weight", (both + values * dim, taps))
            m.hf[la + "conv1d.weight"] = np.concatenate([conv[:both], order(conv[both:], dim)])[:, None]
            decay = m.put(blk + "ssm_a", (values,), x=-np.exp(m.rng.standard_normal(values)))
            m.hf[la + "A_log"] = np.log(-order(decay, 1))
            m.hf[la + "dt_bias"] = order(m.put(blk + "ssm_dt.bias", (values,)), 1)
            m.hf[la + "norm.weight"] = m.put(blk + "ssm_norm.weight", (dim,), 1)
            m.hf[la + "out_proj.weight"] = order(m.put(blk + "ssm_out.weight", (hidden, values * dim)), dim, 1)
        m.router(i, hidden)
        m.hf[f"model.layers.{i}.mlp.shared_expert_gate.weight"] = m.put(blk + "ffn_gate_inp_shexp.weight", (hidden,))[None]
        m.mlp(i, hidden, 64, "_shexp", "shared_expert.")
        m.experts(i, hidden, 64)
    m.close()
    for name, x in m.hf.items():
        if name.endswith("norm.weight") and "linear_attn" not in name:
            m.hf[name] = x - 1
    if own:
        c |= {"model_type": "qwen3_5_moe_text", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                  "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}}
        for i in range(2):
            at = f"model.layers.{i}.mlp.experts."
            take = lambda part: [m.hf.pop(f"{at}{e}.{part}_proj.weight") for e in range(EXPERTS)]
            gate, up, down = take("gate"), take("up"), take("down")
            m.hf[at + "gate_up_proj"] = np.stack([np.concatenate(x) for x in zip(gate, up)])
            m.hf[at + "down_proj"] = np.stack(down)
        return {"language_model." + k: v for k, v in m.hf.items()}, {"model_type": "qwen3_5_moe", "text_config": c,
                                                                     "tie_word_embeddings": False}
    return m.hf, c


def qwen35moe(path):
    return hybrid(path, "qwen35moe", [("_exps", "Q5_1"), ("attn", "Q4_1"), ("ssm_out", "Q8_0"), ("ssm_alpha", "BF16"), ("shexp", "Q4_1"),
                                      ("token_embd", "Q4_0"), ("output", "Q4_1")])


def qwen3next(path):
    return hybrid(path, "qwen3next", [("_exps", "IQ4_NL"), ("attn", "Q5_0"), ("ssm_out", "Q8_0"), ("ssm_ba", "BF16"), ("shexp", "Q5_1"),
                                      ("token_embd", "Q5_1"), ("output", "Q5_0")])


SIGMOID = {"n_routed_experts": EXPERTS, "moe_intermediate_size": 64, "intermediate_size": 128, "first_k_dense_replace": 1,
           "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}


def add_sigmoid(m):
    m.w.add_feed_forward_length(128)
    m.w.add_leading_dense_block_count(1)
    m.w.add_expert_shared_count(1)
    m.w.add_expert_weights_scale(1.5)
    m.w.add_expert_weights_norm(True)
    m.w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def feed_forward(m, i, fused=False):
    if i == 0:
        m.mlp(i, 64, 128, "", "")
        return
    m.router(i, 64, bias="mlp.gate.e_score_correction_bias")
    m.mlp(i, 64, 64, "_shexp", "shared_experts.")
    m.experts(i, 64, 64, fused=fused)


def latent_attention(m, i, heads, nope, rope, value, latent):
    """With absorbed matrices of the heads, and queries of rank 64."""
    blk, ours = f"blk.{i}.", f"model.layers.{i}.self_attn."
    m.norms(i, 64)
    for theirs, name, shape in (("q_a", "q_a_proj", (64, 64)), ("q_b", "q_b_proj", (heads * (nope + rope), 64)),
                                ("kv_a_mqa", "kv_a_proj_with_mqa", (latent + rope, 64)), ("output", "o_proj", (64, heads * value))):
        m.hf[f"{ours}{name}.weight"] = m.put(f"{blk}attn_{theirs}.weight", shape)
    m.hf[ours + "q_a_layernorm.weight"] = m.put(blk + "attn_q_a_norm.weight", (64,), 1)
    m.hf[ours + "kv_a_layernorm.weight"] = m.put(blk + "attn_kv_a_norm.weight", (latent,), 1)
    k, v = m.put(blk + "attn_k_b.weight", (heads, latent, nope)), m.put(blk + "attn_v_b.weight", (heads, value, latent))
    m.hf[ours + "kv_b_proj.weight"] = np.concatenate([k.transpose(0, 2, 1), v], 1).reshape(-1, latent)


def deepseek2(path):
    """Two files; the heads' matrices absorbed; YaRN."""
    nope, rope, value, latent, heads = 32, 32, 32, 64, 2
    c = BASE | SIGMOID | {"model_type": "deepseek_v3", "num_key_value_heads": heads, "moe_layer_freq": 1, "topk_method": "noaux_tc",
                          "scoring_func": "sigmoid", "q_lora_rank": 64, "kv_lora_rank": latent, "qk_nope_head_dim": nope,
                          "qk_rope_head_dim": rope, "v_head_dim": value, "attention_bias": False,
                          "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0,
                                           "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}}
    m = Model(path, "deepseek2", [("_exps", "MXFP4"), ("attn", "Q5_0"), ("ffn", "Q4_0"), ("token_embd", "Q4_0"), ("output", "Q4_1")], 24)
    m.tokenizer("deepseek-v3")
    m.common(c, 2)
    add_sigmoid(m)
    m.w.add_head_count_kv(1)
    m.w.add_key_length(latent + rope)
    m.w.add_value_length(latent)
    m.w.add_key_length_mla(nope + rope)
    m.w.add_value_length_mla(value)
    m.w.add_q_lora_rank(64)
    m.w.add_kv_lora_rank(latent)
    m.w.add_rope_dimension_count(rope)
    m.w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    m.w.add_rope_scaling_factor(4.0)
    m.w.add_rope_scaling_orig_ctx_len(64)
    m.w.add_rope_scaling_yarn_log_mul(0.1)
    for i in range(2):
        latent_attention(m, i, heads, nope, rope, value, latent)
        feed_forward(m, i, fused=True)
    m.close()
    return m.hf, c


def glmdsa(path):
    """Latent attention with an indexer of five heads of 20 channels in the first and the last of three layers, which chooses 8
    positions; a layer for multi-token prediction."""
    nope, rope, value, latent, heads, index, index_heads = 32, 16, 32, 64, 3, 20, 5
    full = [True, False, True]
    c = BASE | SIGMOID | {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 3,
                          "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": rope, "q_lora_rank": 64,
                          "kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value,
                          "attention_bias": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                          "index_n_heads": index_heads, "index_head_dim": index, "index_topk": 8,
                          "indexer_types": ["full" if f else "shared" for f in full]}
    del c["rope_scaling"], c["rope_theta"], c["mlp_only_layers"], c["decoder_sparse_step"]
    m = Model(path, "glm-dsa", [("_exps", "Q4_0"), ("indexer.proj", "F16"), ("indexer.attn_k", "Q8_0"), ("indexer", "Q5_0"),
                                ("attn_q_b", "Q4_1"), ("attn", "Q5_1"), ("ffn", "Q4_0"), ("token_embd", "Q4_0"), ("output", "Q4_1")])
    m.tokenizer("glm4")
    m.common(c | {"rope_theta": 10000.0}, 4)
    add_sigmoid(m)
    m.w.add_nextn_predict_layers(1)
    m.w.add_head_count_kv(1)
    m.w.add_key_length(latent + rope)
    m.w.add_value_length(latent)
    m.w.add_key_length_mla(nope + rope)
    m.w.add_value_length_mla(value)
    m.w.add_q_lora_rank(64)
    m.w.add_kv_lora_rank(latent)
    m.w.add_rope_dimension_count(rope)
    a = "glm-dsa.attention.indexer."
    m.w.add_uint32(a + "head_count", index_heads)
    m.w.add_uint32(a + "key_length", index)
    m.w.add_uint32(a + "top_k", 8)
    m.w.add_array(a + "types", full)
    for i in range(3):
        latent_attention(m, i, heads, nope, rope, value, latent)
        blk, ours = f"blk.{i}.indexer.", f"model.layers.{i}.self_attn.indexer."
        for theirs, name, rows in (("attn_q_b", "wq_b", index_heads * index), ("attn_k", "wk", index), ("proj", "weights_proj", index_heads)):
            if full[i]:
                m.hf[f"{ours}{name}.weight"] = m.put(f"{blk}{theirs}.weight", (rows, 64))
        for tail, plus in (("weight", 1), ("bias", 0)) if full[i] else ():
            m.hf[f"{ours}k_norm.{tail}"] = m.put(f"{blk}k_norm.{tail}", (index,), plus)
        feed_forward(m, i)
    m.put("blk.3.nextn.eh_proj.weight", (64, 128))
    m.close()
    return m.hf, c


def glm4moe(path):
    """With a multi-token-prediction layer behind the model's own."""
    c = BASE | SIGMOID | {"model_type": "glm4_moe", "partial_rotary_factor": 0.5, "use_qk_norm": True, "attention_bias": True}
    m = Model(path, "glm4moe", [("_exps", "Q5_0"), ("attn", "Q4_0"), ("ffn", "Q4_1"), ("token_embd", "Q5_1"), ("output", "Q4_0")])
    m.tokenizer("glm4")
    m.common(c, 3)
    add_sigmoid(m)
    add_heads(m, c)
    m.w.add_rope_dimension_count(16)
    m.w.add_nextn_predict_layers(1)
    for i in range(2):
        m.norms(i, 64, "post_attention_norm")
        m.attention(i, c, biased=True)
        feed_forward(m, i)
    m.put("blk.2.nextn.enorm.weight", (64,))
    m.put("blk.2.attn_norm.weight", (64,))
    m.close()
    return m.hf, c


def minimax(path):
    c = BASE | {"model_type": "minimax", "num_local_experts": EXPERTS, "intermediate_size": 64, "rotary_dim": 16,
                "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_qk_norm": True}
    m = Model(path, "minimax-m2", [("_exps", "Q4_0"), ("attn", "Q5_1"), ("token_embd", "Q4_0"), ("output", "IQ4_NL")])
    m.tokenizer("minimax-m2")
    m.common(c, 2)
    add_heads(m, c)
    m.w.add_feed_forward_length(64)
    m.w.add_rope_dimension_count(16)
    m.w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for i in range(2):
        m.norms(i, 64)
        m.attention(i, c, norm="all")
        m.router(i, 64, "block_sparse_moe.gate", "block_sparse_moe.e_score_correction_bias")
        m.experts(i, 64, 64, "block_sparse_moe.experts.{}.{}.weight", ("w1", "w3", "w2"))
    m.close()
    return m.hf, c


def gptoss(path):
    """Sinks, a window in the first layer, biases everywhere. Under mlx-lm's own names."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False}
    c = BASE | {"model_type": "gpt_oss", "num_local_experts": EXPERTS, "intermediate_size": 64, "sliding_window": 3,
                "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": yarn}
    m = Model(path, "gpt-oss", [("_exps.weight", "MXFP4"), ("attn", "Q4_0"), ("token_embd", "Q4_0"), ("output", "Q4_1")])
    m.tokenizer("gpt-4o")
    m.common(c, 2)
    add_heads(m, c)
    m.w.add_sliding_window(3)
    m.w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    m.w.add_rope_scaling_factor(8.0)
    m.w.add_rope_scaling_orig_ctx_len(64)
    for i in range(2):
        blk, ours = f"blk.{i}.", f"model.layers.{i}."
        m.norms(i, 64, "post_attention_norm")
        m.attention(i, c, biased=True, norm=None)
        m.hf[ours + "self_attn.o_proj.bias"] = m.put(blk + "attn_output.bias", (64,))
        m.hf[ours + "self_attn.sinks"] = m.put(blk + "attn_sinks.weight", (c["num_attention_heads"],))
        m.router(i, 64, "mlp.router")
        m.hf[ours + "mlp.router.bias"] = m.put(blk + "ffn_gate_inp.bias", (EXPERTS,))
        for x in ("gate", "up", "down"):
            m.hf[f"{ours}mlp.experts.{x}_proj.weight"] = m.put(f"{blk}ffn_{x}_exps.weight", (EXPERTS, 64, 64))
            m.hf[f"{ours}mlp.experts.{x}_proj.bias"] = m.put(f"{blk}ffn_{x}_exps.bias", (EXPERTS, 64))
    m.close()
    return m.hf, c


def numbers(w, key, values):
    """A list of 64-bit numbers."""
    w.add_key_value(key, values, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)


def delta_net(m, i, hidden, keys, per, dim, taps):
    """With value heads in llama.cpp's order."""
    values, both = keys * per, 2 * keys * dim
    blk, la = f"blk.{i}.", f"model.layers.{i}.linear_attn."
    rows = lambda x: np.concatenate([x[:both], grouped(x[both:], keys, per, dim)])
    m.hf[la + "in_proj_qkv.weight"] = rows(m.put(blk + "attn_qkv.weight", (both + values * dim, hidden)))
    m.hf[la + "in_proj_z.weight"] = grouped(m.put(blk + "attn_gate.weight", (values * dim, hidden)), keys, per, dim)
    m.hf[la + "in_proj_b.weight"] = grouped(m.put(blk + "ssm_beta.weight", (values, hidden)), keys, per, 1)
    m.hf[la + "in_proj_a.weight"] = grouped(m.put(blk + "ssm_alpha.weight", (values, hidden)), keys, per, 1)
    m.hf[la + "conv1d.weight"] = rows(m.put(blk + "ssm_conv1d.weight", (both + values * dim, taps)))[:, None]
    decay = m.put(blk + "ssm_a", (values,), x=-np.exp(m.rng.standard_normal(values)))
    m.hf[la + "A_log"] = np.log(-grouped(decay, keys, per, 1))
    m.hf[la + "dt_bias"] = grouped(m.put(blk + "ssm_dt.bias", (values,)), keys, per, 1)
    m.hf[la + "norm.weight"] = m.put(blk + "ssm_norm.weight", (dim,), 1)
    m.hf[la + "out_proj.weight"] = grouped(m.put(blk + "ssm_out.weight", (hidden, values * dim)), keys, per, dim, 1)


def streams(m, theirs, ours, width, rank, n):
    """A mix of n streams; 0: the last one, which has no weights for a part's output."""
    m.hf[ours + "hc_norm.weight"] = m.put(theirs + "norm.weight", (width,), 1)
    m.hf[ours + "input_mix_weight_down.weight"] = m.put(theirs + "down.weight", (rank, width))
    m.hf[ours + "input_mix_weight_up.weight"] = m.put(theirs + "up.weight", (width, rank))
    if n:
        m.hf[ours + "block_inject_weight.weight"] = m.put(theirs + "inject.weight", (n, width))


def qwen4exp(path):
    """Three streams of a rank that blocks do not divide; a table in the last of three layers, whose end of text is not the
    tokenizer's; attention in the second, whose indexer's queries and keys have different types and a budget of 8 positions."""
    from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

    hidden, n, rank, keys, per, dim, taps, index, index_heads, at = 64, 3, 20, 2, 3, 32, 3, 20, 3, 2
    width = n * hidden
    types = ["linear_attention", "full_attention", "linear_attention"]
    c = BASE | {"model_type": "qwen4_exp_text", "architectures": ["Qwen4ExpForCausalLM"], "num_hidden_layers": 3,
                "layer_types": types, "num_attention_heads": 3, "head_dim": 40, "num_experts": EXPERTS,
                "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "linear_num_key_heads": keys,
                "linear_num_value_heads": keys * per, "linear_key_head_dim": dim, "linear_value_head_dim": dim,
                "linear_conv_kernel_dim": taps, "attention_bias": False, "hc_count": n, "hc_lowrank": rank,
                "ple_layer_ids": [at + 1], "ple_embed_dim": hidden, "ple_conv_kernel_size": 3, "ngram_size": 3,
                "heads_per_ngram": 1, "ngram_vocab_size_base": 300, "make_ngram_vocab_size_divisible_by": 10, "seed": 99,
                "split_ngram_parts": 2, "eos_token_id": [263, 262], "output_gate_type": "sigmoid", "indexer_n_heads": index_heads,
                "indexer_kv_heads": 1, "indexer_head_dim": index, "indexer_budget": 8, "indexer_compress_ratio": 2,
                "mamba_ssm_dtype": "float32",
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.3,
                                    "mrope_interleaved": True, "mrope_section": [2, 2, 2]}}
    state = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**c)).state_dict()
    table = f"model.layers.{at}.ple.ple_embedding."
    constants = {k: state[table + k] for k in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")}
    rows, cols = next(x.shape for k, x in state.items() if k.startswith(table + "ngram_embedding."))

    m = Model(path, "qwen4exp", [("attn_output", "F16"), ("attn_up", "F16"), ("ffn_up.", "F16"), ("hc_up", "F16"), ("hc_", "Q8_0"),
                                 ("per_layer_token_embd", "Q8_0"), ("token_embd", "Q5_1"), ("output.", "Q5_0"), ("_exps", "Q4_1"),
                                 ("attn_", "Q5_0"), ("ssm_out", "Q8_0"), ("ssm_alpha", "BF16"), ("indexer.q", "Q5_1"),
                                 ("indexer.k", "Q8_0"), ("shexp", "Q4_0"), ("ple_key", "Q4_1"), ("ple_value", "BF16"),
                                 ("ple_conv", "F16")])
    m.tokenizer("qwen35")
    m.common(c, 3, norm=False)
    add_heads(m, c)
    a = "qwen4exp."
    m.w.add_expert_shared_feed_forward_length(64)
    m.w.add_rope_dimension_count(12)
    m.w.add_rope_dimension_sections([2, 2, 2, 0])
    m.w.add_ssm_conv_kernel(taps)
    m.w.add_ssm_state_size(dim)
    m.w.add_ssm_group_count(keys)
    m.w.add_ssm_time_step_rank(keys * per)
    m.w.add_ssm_inner_size(keys * per * dim)
    m.w.add_uint32(a + "full_attention_interval", 4)  # converters write it without looking at the list
    m.w.add_array(a + "attention.recurrent_layers", [t == "linear_attention" for t in types])
    m.w.add_uint32(a + "hyper_connection.count", n)
    m.w.add_uint32(a + "hyper_connection.low_rank", rank)
    m.w.add_uint32(a + "attention.indexer.head_count", index_heads)
    m.w.add_uint32(a + "attention.indexer.key_length", index)
    m.w.add_uint32(a + "attention.indexer.top_k", 8)
    m.w.add_array(a + "attention.compress_ratios", [0 if t == "linear_attention" else 2 for t in types])
    m.w.add_array(a + "ple.layers", [at])
    m.w.add_uint32(a + "ple.ngram_size", 3)
    m.w.add_uint32(a + "ple.heads_per_ngram", 1)
    m.w.add_uint32(a + "ple.conv_kernel", 3)
    m.w.add_uint32(a + "ple.eos_token_id", 263)
    m.w.add_uint32(a + "embedding_length_per_layer_input", cols)
    numbers(m.w, a + "ple.layer_multipliers", constants["layer_multipliers"].tolist())
    numbers(m.w, a + "ple.head_offsets", constants["ngram_heads_offsets"].tolist())
    numbers(m.w, a + "ple.head_vocab_sizes", constants["ngram_heads_vocab_sizes"].tolist())

    streams(m, "output_hc_", "model.hyper_connection_mixer.", width, rank, 0)
    for i, part in enumerate(np.split(m.put("per_layer_token_embd.weight", (rows, cols)), 2)):
        m.hf[f"{table}ngram_embedding.shard_{i}.weight"] = part
    for i, kind in enumerate(types):
        blk, ours = f"blk.{i}.", f"model.layers.{i}."
        streams(m, blk + "hc_attn_", ours + "attn_hyper_connection.", width, rank, n)
        streams(m, blk + "hc_ffn_", ours + "mlp_hyper_connection.", width, rank, n)
        if kind == "linear_attention":
            delta_net(m, i, hidden, keys, per, dim, taps)
        else:
            m.attention(i, c, gated=True)
            at_index = ours + "self_attn.indexer."
            q, k = (m.put(f"{blk}indexer.{x}_proj.weight", (r * index, hidden)) for x, r in (("q", index_heads), ("k", 1)))
            m.hf[at_index + "index_qk_proj.weight"] = np.concatenate([q, k])
            for x in ("q", "k"):
                m.hf[f"{at_index}{x}_layernorm.weight"] = m.put(f"{blk}indexer.{x}_norm.weight", (index,), 1)
        if i == at:
            m.hf[ours + "ple.key_proj.weight"] = m.put(blk + "ple_key.weight", (width, hidden))
            m.hf[ours + "ple.value_proj.weight"] = m.put(blk + "ple_value.weight", (hidden, hidden))
            m.hf[ours + "ple.conv1d.weight"] = m.put(blk + "ple_conv1d.weight", (width, 3))[:, None]
            for x in ("norm_key", "norm_query", "norm_conv"):
                m.hf[f"{ours}ple.{x}.weight"] = m.put(f"{blk}ple_{x}.weight", (width,), 1)
        m.router(i, hidden)
        m.hf[ours + "mlp.shared_expert_gate.weight"] = m.put(blk + "ffn_gate_inp_shexp.weight", (hidden,))[None]
        m.mlp(i, hidden, 64, "_shexp", "shared_expert.")
        m.experts(i, hidden, 64)
    m.close()
    for name, x in m.hf.items():
        if "norm" in name and "linear_attn" not in name:
            m.hf[name] = x - 1
    m.hf |= {table + k: x.numpy() for k, x in constants.items()}
    return m.hf, c


def gemma4(path):
    """A layer with a window of 8 positions, and one with larger heads whose values are its keys; gate and up in one tensor."""
    hidden, inner = 64, 64
    c = BASE | {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
                "layer_types": ["sliding_attention", "full_attention"], "num_key_value_heads": 2, "global_head_dim": 64,
                "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 8, "enable_moe_block": True,
                "num_experts": EXPERTS, "top_k_experts": TOP_K, "moe_intermediate_size": inner, "intermediate_size": 128,
                "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "final_logit_softcapping": 30.0,
                "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": [262, 263], "pad_token_id": 0,
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}
    m = Model(path, "gemma4", [("token_embd", "Q8_0"), ("gate_up_exps", "Q4_0"), ("down_exps", "Q5_0"), ("attn_output", "F16"),
                               ("attn_k.", "Q8_0"), ("attn_", "Q5_1"), ("ffn_down.", "BF16"), ("ffn_gate.", "Q4_1"),
                               ("ffn_up.", "Q5_0")])
    m.tokenizer("qwen2")
    m.common(c, 2, tied=True)
    a = "gemma4."
    m.w.add_array(a + "attention.head_count_kv", [2, 1])
    m.w.add_uint32(a + "attention.key_length", 64)
    m.w.add_uint32(a + "attention.value_length", 64)
    m.w.add_uint32(a + "attention.key_length_swa", 32)
    m.w.add_uint32(a + "attention.value_length_swa", 32)
    m.w.add_uint32(a + "attention.sliding_window", 8)
    m.w.add_array(a + "attention.sliding_window_pattern", [True, False])
    m.w.add_uint32(a + "attention.shared_kv_layers", 0)
    m.w.add_uint32(a + "embedding_length_per_layer_input", 0)
    m.w.add_uint32(a + "feed_forward_length", 128)
    m.w.add_float32(a + "rope.freq_base_swa", 500.0)
    m.w.add_uint32(a + "rope.dimension_count", 64)
    m.w.add_uint32(a + "rope.dimension_count_swa", 32)
    m.w.add_float32(a + "final_logit_softcapping", 30.0)
    m.put("rope_freqs.weight", (32,), x=[1.0] * 8 + [1e30] * 24)
    for i in range(2):
        blk, ours = f"blk.{i}.", f"model.layers.{i}."
        dim, kv = (64, 1) if i else (32, 2)
        names = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
                 "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
                 "post_ffw_norm_1": "post_feedforward_layernorm_1", "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
                 "post_ffw_norm_2": "post_feedforward_layernorm_2"}
        for theirs, name in names.items():
            m.hf[f"{ours}{name}.weight"] = m.put(f"{blk}{theirs}.weight", (hidden,), 1)
        for x, n in (("q", 2), ("k", kv), ("v", 0 if i else kv)):
            if n:
                m.hf[f"{ours}self_attn.{x}_proj.weight"] = m.put(f"{blk}attn_{x}.weight", (n * dim, hidden))
        m.hf[ours + "self_attn.o_proj.weight"] = m.put(blk + "attn_output.weight", (hidden, 2 * dim))
        for x in "qk":
            m.hf[f"{ours}self_attn.{x}_norm.weight"] = m.put(f"{blk}attn_{x}_norm.weight", (dim,), 0.6)
        m.mlp(i, hidden, 128, "", "")
        m.router(i, hidden, "router.proj")
        m.hf[ours + "router.scale"] = m.put(blk + "ffn_gate_inp.scale", (hidden,), 4)
        m.hf[ours + "router.per_expert_scale"] = m.put(blk + "ffn_down_exps.scale", (EXPERTS,), 1)
        m.hf[ours + "experts.gate_up_proj"] = m.put(blk + "ffn_gate_up_exps.weight", (EXPERTS, 2 * inner, hidden))
        m.hf[ours + "experts.down_proj"] = m.put(blk + "ffn_down_exps.weight", (EXPERTS, hidden, inner))
        m.hf[ours + "layer_scalar"] = m.put(blk + "layer_output_scale.weight", (1,), 1)
    m.close()
    return m.hf, {k: x for k, x in c.items() if k not in ("rope_scaling", "rope_theta")}


def logits_of_transformers(hf, c, ids):
    """In float32, of a family that mlx-lm does not have."""
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.append(str(Path(__file__).parent.parent / "families"))
    from make_hf import round_embedding_scale, topk_by_index

    torch.Tensor.topk = topk_by_index
    with tempfile.TemporaryDirectory() as d:
        Path(d, "config.json").write_text(json.dumps(c))
        save_file({k: np.ascontiguousarray(v) for k, v in hf.items()}, d + "/model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
        round_embedding_scale(model)
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def logits(hf, c, ids):
    """mlx-lm's, in float32. It rounds the range of YaRN even where the configuration says truncate: false; not here."""
    rounded = (c.get("rope_scaling") or {}).get("truncate", True)
    rope_utils.math = math if rounded else SimpleNamespace(floor=lambda x: x, ceil=lambda x: x, log=math.log, pi=math.pi)
    with tempfile.TemporaryDirectory() as d:
        Path(d, "config.json").write_text(json.dumps(c))
        save_file({k: np.ascontiguousarray(v) for k, v in hf.items()}, d + "/model.safetensors", metadata={"format": "pt"})
        model, _ = load_model(Path(d))
        return np.array(model(mx.array([ids])).astype(mx.float32))[0]


def types(out):
    """One tensor of each type that is read: two rows of 256, one of them with a number far out."""
    names = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
             "IQ4_XS", "MXFP4"]
    rng = np.random.default_rng(5)
    w = gguf.GGUFWriter(out / "types.gguf", "qwen3moe")
    numbers = {}
    for name in names:
        x = rng.standard_normal((2, 256)).astype(np.float32)
        x[1] = x[1] * 1e-2 + 2
        x[1, 7] = 40
        packed = x if name == "F32" else quantise(x, TYPE[name])
        w.add_tensor(name, packed, raw_dtype=TYPE[name])
        numbers[name] = x if name == "F32" else dequantize(packed, TYPE[name]).astype(np.float32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    save_file(numbers, out / "types.safetensors")


def main():
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    mx.set_default_device(mx.cpu)
    makers = {f.__name__: f for f in (qwen3moe, qwen35moe, qwen3next, deepseek2, glm4moe, minimax, gptoss, qwen3moe_even, qwen4exp, gemma4, glmdsa)}
    golden = {}
    if sys.argv[2:]:
        golden = load_file(out / "golden.safetensors")
    else:
        types(out)
    for n, name in enumerate(makers):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        hf, c = makers[name](out / f"{name}.gguf")
        is_own = name in ("qwen4exp", "gemma4", "glmdsa")
        ids = np.random.default_rng(9).integers(0, 256, 40 if is_own else 6, np.int32)
        if name in ("qwen4exp", "glmdsa"):  # their budget is 8 positions; the second of these tokens ends n-grams
            ids[[5, 20]] = 262, 263
        golden[f"case{n}.tokens"] = ids
        golden[f"case{n}.logits"] = (logits_of_transformers if is_own else logits)(hf, c, ids.tolist())
    save_file(golden, out / "golden.safetensors")


main()
