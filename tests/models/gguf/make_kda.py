#!/usr/bin/env python3
"""Writes kimilinear.gguf, bailingmoe3.gguf, glm5next.gguf, minimaxm3.gguf, step35.gguf, mimo2.gguf, nemotronh.gguf and kimik3.gguf: models
of ../families by llama.cpp's own converter, whose vocabulary is left out; glm53f-two is written by ../families/make_glm53f.py
first. Matrices become Q4_0, which holds their numbers exactly. See README.md.

usage: make_kda.py LLAMA_CPP OUT_DIR DIR_OF_GLM53F_TWO [NAME...]
"""

import json
import sys
from pathlib import Path

LLAMA_CPP = Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf  # noqa: E402
from conversion.bailingmoe3 import BailingMoeV3Model  # noqa: E402
from conversion.glm import Glm5NextModel  # noqa: E402
from conversion.kimi_k3 import KimiK3Model  # noqa: E402
from conversion.kimi_linear import KimiLinearModel  # noqa: E402
from conversion.mimo import MimoV2Model  # noqa: E402
from conversion.minimax import MiniMaxM3Model  # noqa: E402
from conversion.nemotron import NemotronHModel  # noqa: E402
from conversion.step3 import Step35Model  # noqa: E402

FAMILIES = Path(__file__).parent.parent / "families"
MODELS = {"kimilinear": (KimiLinearModel, FAMILIES / "kimilin-plain"), "bailingmoe3": (BailingMoeV3Model, FAMILIES / "ling-flash"),
          "glm5next": (Glm5NextModel, Path(sys.argv[3])), "minimaxm3": (MiniMaxM3Model, FAMILIES / "m3-plain"),
          "step35": (Step35Model, FAMILIES / "step-plain"), "mimo2": (MimoV2Model, FAMILIES / "mimo-plain"),
          "nemotronh": (NemotronHModel, FAMILIES / "nemo-plain"), "kimik3": (KimiK3Model, FAMILIES / "k3-plain")}


def no_vocabulary(self):
    self.gguf_writer.add_tokenizer_model("none")


def as_q4_0(self, name, new_name, bid, n_dims):
    is_matrix = n_dims >= 2 and new_name.endswith(".weight") and "conv1d" not in new_name and "ffn_gate_inp" not in new_name
    if any(x in new_name for x in (".hc_", "indexer_compressor")):
        return gguf.GGMLQuantizationType.F32
    # Rows of 32 columns are matrices that kv_b_proj or a gate of low rank was made into; Q4_0 does not hold the former's.
    if not is_matrix or "attn_k_b" in new_name:
        return False
    return gguf.GGMLQuantizationType.Q4_0


def main():
    for out in sys.argv[4:] or MODELS:
        kind, folder = MODELS[out]
        kind.no_mtp = True
        kind.set_vocab = no_vocabulary
        kind.tensor_force_quant = as_q4_0
        keys = json.loads((folder / "config.json").read_text())  # transformers would rename some
        if "text_config" in keys:
            keys |= keys["text_config"] | {"num_nextn_predict_layers": 0}
        model = kind(folder, gguf.LlamaFileType.MOSTLY_BF16, Path(sys.argv[2]) / f"{out}.gguf", model_name=folder.name,
                     hparams=keys)
        model.write()


if __name__ == "__main__":
    main()
