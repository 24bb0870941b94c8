#!/usr/bin/env python3
"""Writes tests/data/pieces.json: small vocabularies of SentencePiece's BPE with byte fallback, and the ids of
texts (pip install sentencepiece tokenizers transformers).

`scored` is trained by sentencepiece, which has scores and puts a space before a text; its ids are
sentencepiece's. `merged` is the same vocabulary in the form of Gemma 4's tokenizer.json: merges instead of
scores, no space before a text, and added tokens; its ids are those of tokenizers. test_pieces reads it.
The training text is docs/hacking.md, so another day gives another vocabulary.

usage: pieces_cases.py > tests/data/pieces.json
"""

import io
import json
import pathlib
import random

import sentencepiece
import tokenizer_ids as ids_of
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.tokenization_utils_base import generate_merges

ROOT = pathlib.Path(__file__).parents[2]
ADDED = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|think|>"]


def train():
    lines = (ROOT / "docs/hacking.md").read_text().splitlines() + [" ".join(ids_of.WORDS)] * 3
    lines += [" " * n + "x" + "\t" * n for n in range(1, 12)] * 20
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, model_type="bpe", vocab_size=900, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return model, sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def merged_tokenizer(model):
    pieces = [p.piece for p in model.pieces]
    normal = {p.piece: i for i, p in enumerate(model.pieces) if p.type == 1}
    merges = generate_merges(normal, {p: model.pieces[i].score for p, i in normal.items()})
    t = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, byte_fallback=True,
                             fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([AddedToken(a, normalized=False) for a in ["<unk>", "<s>", "</s>"] + ADDED])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def texts(r, added, n):
    known = ["", " ", "  ", "\n\n", "a", " a", "a ", "▁", "Hello  world", "é\x00\x01", "🙂 ☃️", "\t\tif (x)"]
    known += ["<0x41>", "</s>"]
    while len(known) < n:
        text = ids_of.text_of(r, added)
        if len(text) < 60:
            known.append(text)
    return known


def main():
    r = random.Random(3)
    model, processor = train()
    merged = merged_tokenizer(model)
    scored = [p for p in texts(r, [], 130) if not any(x in p for x in ("\0", "▁", "</s>"))]
    json.dump({
        "scored": {"tokens": [p.piece for p in model.pieces],
                   "scores": [p.score for p in model.pieces],
                   "types": [p.type for p in model.pieces],
                   "cases": [[t, processor.encode(t)] for t in scored]},
        "merged": {"tokenizer": json.loads(merged.to_str()),
                   "cases": [[t, merged.encode(t, add_special_tokens=False).ids]
                             for t in texts(r, ADDED, 130)]},
    }, __import__("sys").stdout, ensure_ascii=False, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
