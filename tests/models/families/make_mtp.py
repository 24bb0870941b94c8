#!/usr/bin/env python3
"""Computes the logits of layers of multi-token prediction that have several residual streams, with transformers' layers in
float32, for tests/model/test_nextn.c. See README.md.

usage: make_mtp.py OUT_DIR [NAME...]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask

HERE = Path(__file__).parent
N, ENDS = 30, (9, 10, 11, 30, 31)  # as in the test


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


def draw(hidden, width, vocab, rank):
    d = Draws()
    return {"embedding": d.fill((vocab, hidden), 0, 1), "join": d.fill((hidden, 2 * hidden), 0, 0.2),
            "last": d.fill(hidden, 1, 0.5), "of_embedding": d.fill(hidden, 1, 0.5),
            "of_hidden": d.fill(width if rank else hidden, 1, 0.5), "own": d.fill(hidden, 1, 0.5),
            "states": d.fill((N, width), 0, 3), "mix_norm": d.fill(width, 1, 0.5),
            "mix_down": d.fill((rank, width), 0, 0.1), "mix_up": d.fill((width, rank), 0, 0.5),
            "ids": torch.tensor([(i * 37 + 5) % vocab for i in range(N + 1)])}


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def embedding_part(t, eps):
    hidden = t["join"].shape[0]
    return rms(t["embedding"][t["ids"]], 1 + t["of_embedding"] if t["less_one"] else t["of_embedding"], eps) @ \
        t["join"][:, :hidden].T


def rows_of(t, run):
    """Runs the rows of the model's states, then one more with the layer's own last state."""
    first = run(t["states"])
    return run(torch.cat([t["states"], first[N - 1:N]]))


def qwen4():
    """As vLLM's Qwen4ExpMultiTokenPredictor: one norm over all streams, fc_hidden for each of them."""
    model = AutoModelForCausalLM.from_pretrained(HERE / "qw4-plain", dtype=torch.float32, attn_implementation="eager")
    c, m = model.config, model.model
    t = draw(c.hidden_size, c.hidden_size * c.hc_count, c.vocab_size, c.hc_lowrank) | {"less_one": True}
    mixer, layer = m.hyper_connection_mixer, m.layers[2]
    mixer.hc_norm.weight.data, mixer.input_mix_weight_down.weight.data = t["mix_norm"], t["mix_down"]
    mixer.input_mix_weight_up.weight.data = t["mix_up"]
    e = embedding_part(t, c.rms_norm_eps)

    def run(states):
        n = states.shape[0]
        h = rms(states, 1 + t["of_hidden"], c.rms_norm_eps).unflatten(-1, (c.hc_count, c.hidden_size))
        x = (h @ t["join"][:, c.hidden_size:].T + e[:n, None]).flatten(-2)[None]
        positions = torch.arange(n)[None]
        mask = create_causal_mask(config=c, inputs_embeds=x, attention_mask=None, cache=None, position_ids=positions,
                                  allow_is_causal_skip=False)
        return layer(x, m.rotary_emb(x, positions[None].expand(3, -1, -1)), attention_mask=mask)[0]

    return model.lm_head(mixer(rows_of(t, run)))


MODELS = {"qw4-mtp": qwen4}


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        with torch.no_grad():
            logits = MODELS[name]()[[n - 1 for n in ENDS]].numpy()
        save_file({"case0.logits": logits}, out / f"{name}.golden.safetensors")


if __name__ == "__main__":
    main()
