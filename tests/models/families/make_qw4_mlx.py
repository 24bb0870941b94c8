#!/usr/bin/env python3
"""Writes qw4-mlx: the numbers of qw4-plain under the names and in the formats of mlx-vlm's conversions. See README.md.

usage: make_qw4_mlx.py

mlx-vlm 0.7.10 (mlx_vlm/models/qwen4_exp) stacks experts, names the table's shards "shards.K", swaps the last two
dimensions of the convolutions and leaves the norms' weights around 0. Matrices have 4 bits, routers 8 in groups of 64;
the table has groups of 32. The numbers of qw4-plain are codes times a power of two, so nothing is rounded.
"""
import json
import re
import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
GROUP = 64


def read(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    for name, t in header.items():
        if t["dtype"] == "BF16":
            a, b = t["data_offsets"]
            yield name, np.frombuffer(raw[8 + n + a:8 + n + b], np.uint16).reshape(t["shape"])


def floats(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def bf16(x):
    out = (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert (floats(out) == x).all()
    return out


def quantise(x, bits, group):
    """weight, scales and biases: the scale is the grid's step, the bias its least number"""
    values = floats(x)
    groups = values.reshape(*x.shape[:-1], -1, group)
    least, most = groups.min(axis=-1), groups.max(axis=-1)
    step = (most - least) / (2**bits - 1)
    codes = np.round((groups - least[..., None]) / step[..., None]).astype(np.uint64).reshape(*x.shape[:-1], -1)
    assert (codes.reshape(groups.shape) * step[..., None] + least[..., None] == groups).all()
    per = 32 // bits
    words = (codes.reshape(*x.shape[:-1], -1, per) << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(axis=-1)
    return words.astype(np.uint32), bf16(step), bf16(least)


def main():
    tensors, stacks, table = {}, {}, {"group_size": GROUP, "bits": 4, "mode": "affine"}

    def put(name, x):
        stem = name.removesuffix(".weight")
        is_matrix = x.ndim >= 2 and "conv1d" not in name and "norm" not in name
        is_gate = stem.endswith("mlp.gate") or stem.endswith("shared_expert_gate")
        is_table = ".ngram_embedding." in name
        group, bits = 32 if is_table else GROUP, 8 if is_gate else 4
        if not is_matrix or x.shape[-1] % group:
            tensors[name] = x
            return
        if is_gate or is_table:
            table[stem] = {"group_size": group, "bits": bits, "mode": "affine"}
        parts = quantise(x, bits, group)
        for part, values in zip(("weight", "scales", "biases"), parts):
            tensors[f"{stem}.{part}"] = values

    for name, x in read(HERE / "qw4-plain" / "model.safetensors"):
        name = "language_model." + re.sub(r"\.ngram_embedding\.shard_(\d+)", r".ngram_embedding.shards.\1", name)
        expert = re.fullmatch(r"(.*\.mlp)\.experts\.(\d+)\.(\w+)\.weight", name)
        if expert:
            stacks.setdefault(f"{expert[1]}.switch_mlp.{expert[3]}.weight", {})[int(expert[2])] = x
        else:
            put(name, np.moveaxis(x, 2, 1) if "conv1d" in name else x)
    for name, experts in stacks.items():
        put(name, np.stack([experts[i] for i in range(len(experts))]))

    header, data, at = {"__metadata__": {"format": "mlx"}}, [], 0
    names = {np.dtype(np.uint16): "BF16", np.dtype(np.uint32): "U32"}
    for name, x in sorted(tensors.items()):
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        data.append(np.ascontiguousarray(x).tobytes())
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = HERE / "qw4-mlx"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    config = json.loads((HERE / "qw4-plain" / "config.json").read_text())
    config["quantization"] = config["quantization_config"] = table
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
