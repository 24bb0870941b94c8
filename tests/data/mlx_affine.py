#!/usr/bin/env python3
"""Writes tests/data/mlx_affine.txt: what MLX makes of one row of bf16 numbers in each affine format (mlx 0.32.4 from PyPI).

A line each: bits, group, then in hexadecimal the codes' words, the scales and the biases as bf16, and the numbers that
mx.dequantize makes of them in float32. test_quant reads it. usage: mlx_affine.py > tests/data/mlx_affine.txt
"""

import mlx.core as mx
import numpy as np

COLS = 256


def words(a, kind):
    return ",".join(f"{v:x}" for v in np.array(a.view(kind)).flatten())


def main():
    mx.random.seed(12)
    row = (mx.random.normal((1, COLS)) * 0.7 + 0.1).astype(mx.bfloat16)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            codes, scales, biases = mx.quantize(row, group_size=group, bits=bits)
            wide = [x.astype(mx.float32) for x in (scales, biases)]
            values = mx.dequantize(codes, *wide, group_size=group, bits=bits)
            print(bits, group, words(codes, mx.uint32), words(scales, mx.uint16), words(biases, mx.uint16),
                  words(values, mx.uint32))


main()
