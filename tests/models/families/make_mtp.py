#!/usr/bin/env python3
"""Computes the logits of layers of multi-token prediction of models with several residual streams, with
transformers' layers in float32, for tests/model/test_nextn.c. See README.md.

usage: make_mtp.py OUT_DIR [NAME...]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

HERE = Path(__file__).parent
N, ENDS = 30, (9, 10, 11, 30, 31)  # those of the test


class Draws:
    """The test's numbers, in its order."""

    def __init__(self):
        self.seed = 7

    def fill(self, shape, middle, spread):
        out = np.empty(int(np.prod(shape)), np.float32)
        for i in range(out.size):
            self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) % 2**64
            out[i] = np.float32(middle) + np.float32(spread) * np.float32((self.seed >> 40) / 2**23 - 1)
        return torch.from_numpy(out.reshape(shape))


def draw(hidden, n_streams, vocab, rank=0):
    width = n_streams * hidden
    d = Draws()
    return {"embedding": d.fill((vocab, hidden), 0, 1), "join": d.fill((hidden, 2 * hidden), 0, 0.2),
            "last": d.fill(hidden, 1, 0.5), "of_embedding": d.fill(hidden, 1, 0.5),
            "of_hidden": d.fill(width if rank else hidden, 1, 0.5), "own": d.fill(hidden, 1, 0.5),
            "states": d.fill((N, width), 0, 3), "mix_norm": d.fill(width, 1, 0.5),
            "mix_down": d.fill((rank or n_streams, width), 0, 0.1), "mix_up": d.fill((width, rank), 0, 0.5),
            "ids": torch.tensor([(i * 37 + 5) % vocab for i in range(N + 1)])}


def draws_of(model, n_streams, rank=0, less_one=False):
    c = model.config.get_text_config()
    return draw(c.hidden_size, n_streams, c.vocab_size, rank) | {"eps": c.rms_norm_eps, "less": int(less_one)}


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def joined(t, states, normed):
    """fc_embedding for the tokens, and fc_hidden for each stream of the normed states."""
    hidden = t["join"].shape[0]
    e = rms(t["embedding"][t["ids"][:len(states)]], t["less"] + t["of_embedding"], t["eps"]) @ t["join"][:, :hidden].T
    h = normed.reshape(len(states), -1, hidden) @ t["join"][:, hidden:].T
    return e[:, None] + h


def rows_of(t, run):
    """Runs the rows of the model's states, then one more with the layer's own last state."""
    first = run(t["states"])
    return run(torch.cat([t["states"], first[N - 1:]]))


def causal(n, window=None):
    """A mask of n positions that see themselves and those before them, `window` at most."""
    far = torch.arange(n)[:, None] - torch.arange(n)[None]
    seen = (far >= 0) if window is None else (far >= 0) & (far < window)
    return torch.zeros(n, n).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]


def load(name, kind=AutoModelForCausalLM):
    return kind.from_pretrained(HERE / name, dtype=torch.float32, attn_implementation="eager").eval()


def qwen4():
    """vLLM's Qwen4ExpMultiTokenPredictor: one norm over all streams, fc_hidden for each of them."""
    model = load("qw4-plain")
    c, m = model.config, model.model
    t = draws_of(model, c.hc_count, c.hc_lowrank, True)
    mixer, layer = m.hyper_connection_mixer, m.layers[2]
    mixer.hc_norm.weight.data, mixer.input_mix_weight_down.weight.data = t["mix_norm"], t["mix_down"]
    mixer.input_mix_weight_up.weight.data = t["mix_up"]

    def run(states):
        x = joined(t, states, rms(states, 1 + t["of_hidden"], t["eps"])).flatten(-2)[None]
        positions = torch.arange(len(states)).expand(3, 1, -1)
        return layer(x, m.rotary_emb(x, positions), attention_mask=causal(len(states)))[0]

    return model.lm_head(mixer(rows_of(t, run)))


def glm5_next():
    """vLLM's Glm5NextMultiTokenPredictorLayer: a layer with one stream, its input and its output normed."""
    model = load("glm53f-plain", AutoModelForImageTextToText)
    m = model.model.language_model
    t, layer = draws_of(model, 1), m.layers[3]

    def run(states):
        normed = torch.cat([rms(states[:N], t["last"], t["eps"]), states[N:]])
        x = joined(t, states, rms(normed, t["of_hidden"], t["eps"]))[None, :, 0]
        positions = torch.arange(len(states))[None]
        seen = torch.ones(1, len(states)).bool()
        x = x + layer.self_attn(hidden_states=layer.input_layernorm(x), attention_mask=seen, position_ids=positions,
                                position_embeddings=None)[0]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return rms(x[0], t["own"], t["eps"])

    return model.lm_head(rows_of(t, run))


def deepseek_v4():
    """The publisher's MTPBlock: a norm of each stream."""
    model = load("v4-odd")
    c, m = model.config, model.model
    t = draws_of(model, c.hc_mult)
    layer, head = m.layers[2], m.hc_head
    head.hc_fn.data, head.hc_scale.data = t["mix_down"], t["mix_norm"][:1]
    head.hc_base.data = t["mix_norm"][1:1 + c.hc_mult]

    def run(states):
        n = len(states)
        normed = rms(states.reshape(n, c.hc_mult, -1), t["of_hidden"], t["eps"])
        x = joined(t, states, normed)[None]
        positions = torch.arange(n)[None]
        angles = {k: m.rotary_emb(x[:, :, 0], position_ids=positions, layer_type=k) for k in ("main", "compress")}
        return layer(x, position_embeddings=angles, position_ids=positions, attention_mask=causal(n, c.sliding_window),
                     input_ids=t["ids"][None, :n])[0].flatten(-2)

    x = rows_of(t, run)
    return model.lm_head(rms(head(x.unflatten(-1, (c.hc_mult, -1))[None])[0], t["own"], t["eps"]))


MODELS = {"qw4-mtp": qwen4, "glm53f-mtp": glm5_next, "v4-mtp": deepseek_v4}


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        with torch.no_grad():
            logits = MODELS[name]()[[n - 1 for n in ENDS]].numpy()
        save_file({"case0.logits": logits}, out / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
