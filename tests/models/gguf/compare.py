#!/usr/bin/env python3
"""Compares the program with llama.cpp on the GGUF files of this folder: logits of random tokens, tokens of random texts.

usage: compare.py BINARY [FILE.gguf...]

llama.cpp is that of the Python package xllamacpp, whose library exports its C interface. Its products round activations to 8 bits,
so logits of quantised files differ; they agree closely where a file's numbers are F32.
"""

import ctypes as c
import glob
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import xllamacpp
from safetensors.numpy import load_file

HERE = Path(__file__).parent
PIECES = ["a", "B", "the", "The", "'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "1", "23", "4567", ".", "!?", "/", "é", "ñ", "汉", "字",
          "ヿ", "🙂", "-", "_", "\u00a0", "x=", "HTTP", "iPhone", "½", "٣", "—", "Ünï", "camelCase", "ß"]


class Params(c.Structure):
    """Model and context parameters: larger than both, of which only the beginning is changed."""
    _fields_ = [("words", c.c_uint32 * 256)]


class Batch(c.Structure):
    _fields_ = [("n", c.c_int32), ("tokens", c.POINTER(c.c_int32)), ("embeddings", c.c_void_p), ("places", c.POINTER(c.c_int32)),
                ("n_sequences", c.POINTER(c.c_int32)), ("sequences", c.POINTER(c.POINTER(c.c_int32))),
                ("wanted", c.POINTER(c.c_int8))]


def load_library():
    lib = c.PyDLL(glob.glob(os.path.dirname(xllamacpp.__file__) + "/*.so")[0])
    quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
    lib.llama_log_set(quiet, None)
    lib.quiet = quiet
    lib.llama_model_default_params.restype = lib.llama_context_default_params.restype = Params
    for name, result, arguments in (("llama_model_load_from_file", c.c_void_p, [c.c_char_p, Params]),
                                    ("llama_init_from_model", c.c_void_p, [c.c_void_p, Params]),
                                    ("llama_model_get_vocab", c.c_void_p, [c.c_void_p]), ("llama_batch_init", Batch, [c.c_int32] * 3),
                                    ("llama_decode", c.c_int, [c.c_void_p, Batch]), ("llama_vocab_n_tokens", c.c_int, [c.c_void_p]),
                                    ("llama_get_logits_ith", c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
                                    ("llama_tokenize", c.c_int, [c.c_void_p, c.c_char_p, c.c_int, c.c_void_p, c.c_int, c.c_bool, c.c_bool])):
        getattr(lib, name).restype, getattr(lib, name).argtypes = result, arguments
    lib.llama_backend_init()
    return lib


class Llama:
    def __init__(self, lib, path):
        self.lib = lib
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp does not take it")
        params = lib.llama_context_default_params()
        params.words[0] = params.words[1] = 128  # positions, and tokens at once
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_model_get_vocab(self.model)

    def logits(self, ids):
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        for i, token in enumerate(ids):
            batch.tokens[i], batch.places[i], batch.n_sequences[i], batch.wanted[i] = token, i, 1, 1
            batch.sequences[i][0] = 0
        batch.n = len(ids)
        if self.lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        n = self.lib.llama_vocab_n_tokens(self.vocab)
        return np.stack([np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, i), (n,)).copy() for i in range(len(ids))])

    def tokens(self, text):
        raw = text.encode()
        out = (c.c_int32 * (len(raw) + 8))()
        return list(out[: self.lib.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, False)])


def ours(binary, folder, ids, out):
    subprocess.run([binary, "-q", "-m", folder, "--device", "cpu", "--tokens-in", "-", "--logits", out, "--logits-all", "-n", "0"],
                   input=" ".join(map(str, ids)), text=True, check=True, stdout=subprocess.DEVNULL)
    logits = load_file(out)["logits"]
    return logits.reshape(len(ids), -1)


def main():
    lib, binary = load_library(), sys.argv[1]
    for path in sys.argv[2:] or sorted(p for p in HERE.glob("*.gguf") if p.name != "types.gguf" and "-00002-" not in p.name):
        rng = random.Random(5)
        with tempfile.TemporaryDirectory() as tmp:
            subprocess.run([binary, "convert", path, tmp + "/model", "-q"], check=True, stdout=subprocess.DEVNULL)
            llama, ids = Llama(lib, path), [rng.randrange(200) for _ in range(24)]
            a, b = ours(binary, tmp + "/model", ids, tmp + "/logits"), llama.logits(ids)
            apart = np.sqrt(((a - b) ** 2).sum() / ((b - b.mean(-1, keepdims=True)) ** 2).sum())
            # Oniguruma's name of the script; PCRE2's \p{Han} is more.
            text = Path(tmp, "model/tokenizer.json").read_text().replace("sc:Han", "Han")
            split, texts = tokenizers.Tokenizer.from_str(text), ["".join(rng.choices(PIECES, k=rng.randint(1, 25))) for _ in range(300)]
            differ = sum(llama.tokens(t) != split.encode(t, add_special_tokens=False).ids for t in texts)
        print(f"{Path(path).name:32} logits {apart:.1e}  {differ} of {len(texts)} texts have other tokens")


main()
