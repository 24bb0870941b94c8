#!/usr/bin/env python3
"""Writes deepseek4.gguf: v4 of ../sources by llama.cpp's own converter, whose vocabulary is left out. The routed experts' 4-bit
floats stay; matrices of 8-bit floats become Q4_0, which holds their numbers exactly. See README.md.

usage: make_v4.py LLAMA_CPP OUT_DIR
"""

import json
import sys
from pathlib import Path

LLAMA_CPP = Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf  # noqa: E402
from conversion.deepseek import DeepseekV4Model  # noqa: E402

SOURCE = Path(__file__).parent.parent / "sources" / "v4" / "hf"


class Model(DeepseekV4Model):
    model_arch = gguf.MODEL_ARCH.DEEPSEEK4

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")

    @classmethod
    def filter_tensors(cls, item):
        return None if item[0].startswith("vision.") else super().filter_tensors(item)

    def tensor_force_quant(self, name, new_name, bid, n_dims):
        kind = super().tensor_force_quant(name, new_name, bid, n_dims)
        return gguf.GGMLQuantizationType.Q4_0 if kind == gguf.GGMLQuantizationType.Q8_0 else kind


def main():
    keys = json.loads((SOURCE / "config.json").read_text())  # transformers would rename some
    Model(SOURCE, gguf.LlamaFileType.MOSTLY_BF16, Path(sys.argv[2]) / "deepseek4.gguf", model_name="v4", hparams=keys).write()


if __name__ == "__main__":
    main()
