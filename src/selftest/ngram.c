/* The self-test's cases of n-gram rows. */
#include <math.h>
#include <stdio.h>

#include "ops/ngram/ngram.h"
#include "selftest/kernel_test.h"

static const double BOUND = 1e-5;

static void ngram_case(struct kernel_test *l, const struct ngram_shape *c, uint32_t n)
{
    enum { ROOM = 8 }; /* numbers after a token's key and value */
    if (!kt_takes(l, l->is_rest))
        return;
    uint64_t width = (uint64_t)c->n_streams * c->hidden, held = ngram_window(c);
    uint32_t stride = (uint32_t)width + c->hidden + ROOM;
    struct test_buffer *proj = kt_floats(l, (uint64_t)n * stride, -2, 2), *x = kt_floats(l, n * width, -2, 2),
                       *norms[3], *conv = kt_floats(l, width * c->taps + 1, -1, 1),
                       *window = kt_floats(l, held + 1, -2, 2), *out = kt_bytes(l, NULL, 4 * held + 4),
                       *scratch = kt_bytes(l, NULL, 4 * ngram_scratch(c, n));
    for (int i = 0; i < 3; i++)
        norms[i] = kt_floats(l, width, 0.5f, 1.5f);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct ngram op;
        if (ngram_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        ngram_run(&op, l->side[s],
                  &(struct ngram_call){.proj = proj->on[s].address,
                                       .x_norm = norms[0]->on[s].address,
                                       .k_norm = norms[1]->on[s].address,
                                       .u_norm = norms[2]->on[s].address,
                                       .conv = conv->on[s].address,
                                       .window_in = window->on[s].address,
                                       .window_out = out->on[s].address,
                                       .x = x->on[s].address,
                                       .scratch = scratch->on[s].address,
                                       .n = n,
                                       .stride = stride});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u streams of %u, %u taps, dilation %u, %u token%s", c->n_streams, c->hidden,
             c->taps, c->dilation, n, n > 1 ? "s" : "");
    kt_report(l, "ngram", text, fmax(kt_error(l, x, n * width), kt_error(l, out, held)), BOUND);
}

void selftest_ngram_cases(struct kernel_test *l)
{
    static const struct ngram_shape tiny = {1, 4, 2, 1, 1, 1e-6f}, odd = {3, 1036, 3, 2, 0.0625f, 1e-6f},
                                    next = {4, 2560, 4, 3, 1, 1e-6f}, flat = {3, 1036, 0, 0, 1, 1e-20f};
    ngram_case(l, &tiny, 1);
    ngram_case(l, &odd, 1);
    ngram_case(l, &odd, 3);
    ngram_case(l, &odd, 19);
    ngram_case(l, &next, 2);
    ngram_case(l, &flat, 1);
    ngram_case(l, &flat, 5);
}
