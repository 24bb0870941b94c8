#!/usr/bin/python3
"""Writes tests/data/active_experts.safetensors, which test_active_experts reads: logits of models with other
numbers of experts per token than in their configurations. Another program computes them in float32.

  case<N>.tokens  i32 [n]        the prompt
  case<N>.active  i32 [1]        experts per token
  case<N>.share   f32 [1]        share of their weights to use; 1: all
  case<N>.chosen  i32 [1]        number of experts used, over all tokens and layers
  case<N>.logits  f32 [vocab]    logits after the prompt
The cases of a model follow those of the models before it, in the order of MODELS.

usage: active_experts.py REFERENCE OUT, where REFERENCE is the folder of that program's reference.py"""

import json
import struct
import sys

import numpy as np

MODELS = ("qwen-odd/mlx", "deepseek-odd/mlx")
CASES = {
    "qwen-odd/mlx": ((1, 1), (5, 1), (3, 0.6), (12, 0.5)),
    "deepseek-odd/mlx": ((2, 1), (8, 1), (4, 0.6), (8, 0.5)),
}
N_TOKENS = 7
# Rounding may change a choice that is closer than this.
LEAST_GAP = 1e-4


class Share:
    """Replaces the program's choice: keeps the largest of the k experts' weights, up to the share."""

    def __init__(self, module, config, share):
        self.topk, self.sigmoid = module.topk, module.sigmoid
        self.n_experts, self.share, self.gap, self.n_kept = config.E, share, 1.0, []
        self.is_biased, self.scores = config.family == "deepseek", None
        module.sigmoid, module.topk = self.remember, self.choose

    def remember(self, x):
        s = self.sigmoid(x)
        if s.shape == (self.n_experts,):
            self.scores = s
        return s

    def choose(self, p, k):
        chosen = self.topk(p, k)
        # This is a choice of groups.
        if len(p) != self.n_experts:
            return chosen
        weights = (self.scores if self.is_biased else p)[chosen].astype(np.float64)
        weights = weights / weights.sum()
        order = np.argsort(-weights, kind="stable")
        sums = np.cumsum(weights[order])
        n = len(chosen) if self.share == 1 else int(np.argmax(sums >= self.share)) + 1
        if self.share < 1:
            self.gap = min(self.gap, float(np.abs(sums[:-1] - self.share).min()))
        self.n_kept.append(n)
        return chosen[np.sort(order[:n])]


def logits_of(module, path, active, share, seed):
    topk, sigmoid = module.topk, module.sigmoid
    m = module.Model(path)
    m.c.K = active
    s = Share(module, m.c, share)
    tokens = np.random.default_rng(seed).integers(0, m.c.V, N_TOKENS).astype(np.int32)
    for t in tokens:
        logits = m.step(int(t))
    module.topk, module.sigmoid = topk, sigmoid
    return tokens, logits.astype(np.float32), min(m.closest[0], s.gap), s.n_kept


def write(path, tensors):
    header, at = {}, 0
    for name, a in tensors.items():
        kind = {"int32": "I32", "float32": "F32"}[str(a.dtype)]
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in tensors.values():
            f.write(a.tobytes())


def main():
    sys.path.insert(0, sys.argv[1])
    import reference

    out, n = {}, 0
    for model in MODELS:
        for active, share in CASES[model]:
            seed, gap = 0, 0.0
            while gap < LEAST_GAP:
                seed += 1
                tokens, logits, gap, kept = logits_of(reference, "tests/models/" + model, active, share, seed)
            print(f"{model} {active} {share}: seed {seed}, gap {gap:.1e}, {np.mean(kept):.2f} experts")
            out[f"case{n}.tokens"] = tokens
            out[f"case{n}.active"] = np.array([active], np.int32)
            out[f"case{n}.share"] = np.array([share], np.float32)
            out[f"case{n}.chosen"] = np.array([sum(kept)], np.int32)
            out[f"case{n}.logits"] = logits
            n += 1
    write(sys.argv[2], out)


main()
