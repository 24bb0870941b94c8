#!/usr/bin/env python3
"""Writes blocks.safetensors: blocks of every block format, and hashes of their numbers by the gguf package.

usage: blocks.py OUT_DIR
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

TYPE = gguf.GGMLQuantizationType
# Bytes at which a block has float16 numbers.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0],
    "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64],
    "MXFP4": [], "NVFP4": [],
}
# Blocks enough for every entry of the code books.
MANY = {"IQ1_S": 500, "IQ2_XXS": 64, "IQ2_XS": 120, "IQ2_S": 240, "IQ3_XXS": 40, "IQ3_S": 60}
# One, -1, the smallest, a small, a large and the largest number, zeros of both signs.
EDGES = [0x3C00, 0xBC00, 0x0001, 0x83FF, 0x5640, 0x7BFF, 0x0000, 0x8000]


def half(rng):
    return EDGES[rng.integers(len(EDGES))] if rng.integers(4) == 0 else int(rng.integers(0x7C00)) | int(rng.integers(2)) << 15


def blocks_of(kind, name, rng):
    cols, size = gguf.GGML_QUANT_SIZES[kind]
    n = MANY.get(name, 24 if cols == 256 else 96)
    out = rng.integers(0, 256, (n, size), dtype=np.uint8)
    out[0], out[1] = 0, 255
    for b in range(n):
        for at in HALVES[name]:
            out[b, at:at + 2] = np.array([half(rng)], "<u2").view(np.uint8)
        if name == "IQ1_M":
            h = half(rng)
            for i in range(4):
                out[b, 49 + 2 * i] = (out[b, 49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4
        if name == "MXFP4":
            out[b, 0] = [0, 1, 2, 127, 128, 120, 251][b % 7] if b % 2 else out[b, 0] % 250
        if name == "NVFP4":
            out[b, b % 4] = [0, 1, 7, 8, 0x7E, 0x7F, 0x80, 0xFF][b // 4 % 8]
    return out


def hash_of(numbers):
    """FNV-1a of the float32 numbers' words."""
    h = 0x811C9DC5
    for word in numbers.view(np.uint32).tolist():
        h = (h ^ word) * 0x01000193 & 0xFFFFFFFF
    return h


def main():
    out = {}
    for name in HALVES:
        kind = TYPE[name]
        blocks = blocks_of(kind, name, np.random.default_rng(len(out)))
        numbers = dequantize(blocks, kind).astype(np.float32)
        assert np.isfinite(numbers).all(), name
        out[name + ".blocks"] = blocks
        out[name + ".hashes"] = np.array([hash_of(n) for n in numbers], np.uint32)
    save_file(out, Path(sys.argv[1]) / "blocks.safetensors")


main()
