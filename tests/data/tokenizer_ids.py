#!/usr/bin/env python3
"""Compares the ids of published tokenizer.json files with those of Hugging Face's `tokenizers`
(pip install tokenizers).

Each file gets the same kinds of texts: words of many scripts, composed and decomposed, characters at
random, code, long runs of spaces, line ends, digits and letters, "~" in all places, and the file's own
added tokens, whole, cut and joined. The texts are random, from a fixed seed. Needs `make lib`. Prints a
line for each file; exit status 1 if an id differs.

usage: tokenizer_ids.py [-n TEXTS] [--seed N] [--lib build/libmoeflux.so.0] tokenizer.json...
"""

import argparse
import ctypes
import random
import sys
import unicodedata

from tokenizers import Tokenizer

WORDS = """\
the quick brown fox naïve café Straße İstanbul ŒUVRE ĳs don't WE'LL it'S they'Ve I'M you'D
she'ſ 'tis O'Reilly ΑΒΓ αλφάβητο ᾧ Ωραία привет Ёлка ЩИТ ѓ
Україна שָׁלוֹם עִבְרִית مرحبا السَّلَامُ فارسی
हिन्दी क्षत्रिय বাংলা தமிழ் ภาษาไทย
น้ำ ខ្មែរ မြန်မာ ქართული ՀԱՅ አማርኛ 한국어
대한민국 각 日本語 ひらがな がぎぐ カタカナ ﾊﾝｶｸ 中文 汉字測試
𠀀𠮷 龥龦 ꙁꙊ 𝔘𝔫𝔦 𝟘𝟙 ﬁne ﷺ Å K ½ Ⅳ ⅷ ① ² ³ ٣٤٥ १२३
๔๕ 二〇 🙂 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☃️ € £ ∑ √ ≠ →
«x» „y“ … snake_case camelCase HTTPServer x86_64 3.14159 1,000,000 0xDEADBEEF 2026-11-27
a@b.co https://x.y/z?q=1#f ~/.bashrc C:\\tmp $HOME #include <stdio.h> for(i=0;i<n;++i){} => != ===
/* */ // <!-- --> \\n {"a":[1,2]} def f(x): `code` ```py **bold** --flag ... ?! ¿qué?""".split()

SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\x85", "\x0b", "\x0c", "\x1c", "\x1f", "\u200b", "\ufeff", "\u180e"]

RANGES = [
    (0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff), (0x890, 0x8ff),
    (0x900, 0xdff), (0xe00, 0xfff), (0x1000, 0x109f), (0x1100, 0x11ff), (0x1780, 0x17ff),
    (0x1ab0, 0x1aff), (0x1dc0, 0x1dff), (0x1e00, 0x206f), (0x2070, 0x27bf), (0x3000, 0x30ff),
    (0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xa000, 0xa6ff), (0xac00, 0xd7ff), (0xe000, 0xe0ff),
    (0xf900, 0xffff), (0x10000, 0x10fff), (0x10d00, 0x10fff), (0x11000, 0x11fff),
    (0x16100, 0x16fff), (0x1d000, 0x1d7ff), (0x1e000, 0x1e5ff), (0x1f000, 0x1faff),
    (0x20000, 0x2fa1f), (0x30000, 0x32fff), (0x0, 0xffff), (0x10000, 0x10ffff),
]

MARKS = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) == "Mn"]


class Err(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


class Ours:
    """A tokenizer of libmoeflux."""

    def __init__(self, lib, path):
        self.lib, self.err, self.it = lib, Err(), ctypes.c_void_p()
        if lib.moeflux_tokenizer_open(ctypes.byref(self.it), path.encode(), ctypes.byref(self.err)) < 0:
            raise ValueError(self.err.text.decode())

    def encode(self, text):
        raw = text.encode()
        ids = (ctypes.c_int32 * (2 * len(raw) + 16))()
        n = self.lib.moeflux_tokenizer_encode(self.it, raw, ctypes.c_size_t(len(raw)), True, ids,
                                              ctypes.c_size_t(len(ids)), ctypes.byref(self.err))
        return list(ids[:n]) if n >= 0 else self.err.text.decode()


def characters(r):
    if r.randrange(4) == 0:
        bases = "aeqKΑιक가각の\u11a7\U00011935\U00011930"
        return "".join(r.choice(MARKS if r.random() < 0.6 else bases) for _ in range(r.randint(1, 9)))
    low, high = r.choice(RANGES)
    codes = [r.randint(low, high) for _ in range(r.randint(1, 12))]
    return "".join(chr(c) for c in codes if not 0xd800 <= c <= 0xdfff)


def run(r):
    unit = r.choice(["~", " ", " ", "\n", "\t", "0", "9", "a", "é", "中", "!", "=", "-", "\r\n", " \n",
                     "ab", "1 ", "\u0301", "☃", "٣"])
    if unit == "9":
        return "".join(r.choice("0123456789") for _ in range(r.randint(1, 60)))
    return unit * r.choice([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 48, 49, 80, 83, 200])


def tilde(r):
    before = r.choice(["", " ", "  ", "\n", "a", "1", ".", "中"])
    return before + "~" * r.randint(1, 3) + r.choice(["", " ", "  ", "\n", "\n\n", "b", "2", "/", "é"])


def added(r, tokens):
    t = r.choice(tokens)
    kind = r.randrange(6)
    if kind == 0:
        return t[:r.randint(1, len(t))]
    if kind == 1:
        return t[r.randrange(len(t)):]
    return {2: t.upper(), 3: unicodedata.normalize("NFD", t)}.get(kind, t)


def text_of(r, tokens):
    parts = []
    for _ in range(r.randint(1, r.choice([3, 8, 30]))):
        kind = r.randrange(12)
        if kind < 5:
            parts.append(r.choice(WORDS))
        elif kind < 7:
            parts.append(characters(r))
        elif kind == 7:
            parts.append(run(r))
        elif kind == 8:
            parts.append(tilde(r))
        elif kind == 9 and tokens:
            parts.append(added(r, tokens))
        else:
            parts.append(r.choice(SPACES))
        if r.random() < 0.4:
            parts.append(r.choice(SPACES if r.random() < 0.3 else [" "]))
    text = "".join(parts)
    form = r.choice([None, None, "NFD", "NFC", "NFKD"])
    return unicodedata.normalize(form, text) if form else text


def compare(lib, path, n, seed):
    theirs = Tokenizer.from_file(path)
    try:
        ours = Ours(lib, path)
    except ValueError as e:
        print(f"{path}: refused: {e}")
        return False
    tokens = [t.content for t in theirs.get_added_tokens_decoder().values()]
    r, n_ids, different = random.Random(seed), 0, []
    for _ in range(n):
        text = text_of(r, tokens)
        want, got = theirs.encode(text, add_special_tokens=False).ids, ours.encode(text)
        n_ids += len(want)
        if want != got:
            different.append((text, want, got))
    print(f"{path}: {n} texts, {n_ids} ids, {len(different)} texts differ", flush=True)
    for text, want, got in sorted(different, key=lambda d: len(d[0]))[:3]:
        print(f"  {text!r}\n    expected {want[:40]}\n    found    {got[:40]}")
    return not different


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-n", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lib", default="build/libmoeflux.so.0")
    p.add_argument("files", nargs="+")
    o = p.parse_args()
    lib = ctypes.CDLL(o.lib)
    lib.moeflux_tokenizer_encode.restype = ctypes.c_int64
    same = [compare(lib, path, o.n, o.seed) for path in o.files]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
