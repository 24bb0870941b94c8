/* small_model.h - a Qwen3.5-MoE model of random weights, small enough to be evaluated thousands of times.
 *
 * Four layers (delta net, attention, delta net, attention), 64 hidden channels, 4 experts of which 2 are
 * chosen. Its logits tell every two short sequences apart. */
#ifndef MOEFLUX_TESTS_SMALL_MODEL_H
#define MOEFLUX_TESTS_SMALL_MODEL_H

#include <stdint.h>

enum {
    SMALL_VOCAB = 64,
    SMALL_LAYERS = 4,
    SMALL_KV_HEADS = 1,
    SMALL_HEAD_DIM = 32,
    SMALL_WINDOW = 3 * (2 * 16 + 2 * 32), /* numbers of a convolution's window */
    SMALL_S = 2 * 32 * 16,                /* and of a recurrent state */
    SMALL_CONTEXT = 1024,
};

/* Makes dir/hf (bf16 safetensors) and dir/packed (what convert makes of it). Returns the path of the latter,
 * good until the end of the program. Another seed gives another model of the same shapes. */
const char *small_model_make(const char *dir, uint64_t seed);
/* The same with attention in all four layers: no recurrent states. */
const char *small_model_make_attention(const char *dir, uint64_t seed);

#endif
