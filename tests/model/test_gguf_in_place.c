/* GGUF files used as they lie: logits of every family against mlx-lm's on the same numbers, streamed experts,
 * tokenizers, what convert makes of the same file, refusals.
 *
 * suites: check fast asan vulkan cpu */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "check.h"
#include "convert/convert.h"
#include "golden.h"
#include "gguf_writer.h"
#include "model/model_dir.h"
#include "sequence.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"

#define MODELS "tests/models/gguf/"

/* Same order as golden.safetensors. */
static const char *const files[] = {
    "qwen3moe.gguf", "qwen35moe.gguf", "qwen3next.gguf", "deepseek2-00001-of-00002.gguf",
    "glm4moe.gguf",  "minimax.gguf",   "gptoss.gguf"};
enum { N_FILES = sizeof files / sizeof *files, MAX_VOCAB = 512, MAX_TOKENS = 64 };

static const char *path_of(uint32_t i)
{
    static char path[96];
    snprintf(path, sizeof path, MODELS "%s", files[i]);
    return path;
}

/* ---- logits */

/* The largest difference of the logits, in parts of the largest logit, after all tokens in one chunk or after
 * each. */
static double distance(const char *path, const struct golden *g, uint32_t n, bool at_once)
{
    const struct golden_tensor *tokens = golden_find(g, n, "tokens"), *logits = golden_find(g, n, "logits");
    struct sequence q = sequence_open(path, NULL, 64, 0, 64);
    const int32_t *ids = tokens->data;
    float got[MAX_VOCAB];
    double most = 0, apart = 0;
    uint32_t n_tokens = (uint32_t)tokens->shape[0];
    assert_true(q.vocab == logits->shape[1] && q.vocab <= MAX_VOCAB);
    for (uint32_t i = at_once ? n_tokens - 1 : 0; i < n_tokens; i++) {
        const float *want = (const float *)logits->data + (uint64_t)i * q.vocab;
        sequence_eval(&q, at_once ? ids : &ids[i], at_once ? n_tokens : 1, got);
        for (uint32_t k = 0; k < q.vocab; k++) {
            most = fmax(most, fabs((double)want[k]));
            apart = fmax(apart, fabs((double)got[k] - (double)want[k]));
        }
    }
    sequence_close(&q);
    return apart / most;
}

static void logits_are_those_of_the_numbers_in_the_file(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, MODELS "golden.safetensors");
    for (uint32_t i = 0; i < N_FILES; i++)
        for (int at_once = 0; at_once < 2; at_once++) {
            double x = distance(path_of(i), &g, i, at_once);
            printf("%s, %s: %.1e\n", files[i], at_once ? "a chunk" : "token by token", x);
            if (!(x < 1e-4))
                fail_msg("%s: logits are off by %g of the largest", files[i], x);
        }
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_numbers_in_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
