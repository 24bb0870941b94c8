/* generate.c - the smallest program that uses libmoeflux: continues a text with the likeliest tokens, with a
 * penalty for repeated ones.
 *
 *   cc generate.c $(pkg-config --cflags --libs moeflux) -o generate
 *   ./generate MODEL_DIR "Once upon a time" [DEVICE] */
#include <moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 1024, MAX_ANSWER = 24 };

/* The first failure ends the program. */
static void check(int64_t rc, const struct moeflux_err *e)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "generate: %s\n", e->text);
    exit(1);
}

int main(int argc, char **argv)
{
    struct moeflux_model *model;
    struct moeflux_session *session;
    struct moeflux_tokenizer *tokenizer;
    struct moeflux_sampler *sampler;
    struct moeflux_err e = {0};
    int32_t ids[MAX_PROMPT];
    if (argc < 3)
        return fprintf(stderr, "usage: generate MODEL_DIR TEXT [DEVICE]\n"), 2;

    const struct moeflux_options options = {.dir = argv[1], .device = argv[3]};
    check(moeflux_model_open(&model, &options, &e), &e);
    const struct moeflux_model_info info = moeflux_model_get_info(model);
    struct moeflux_sampler_options greedy = moeflux_sampler_defaults();
    greedy.temperature = 0;
    greedy.frequency_penalty = 0.5f;
    check(moeflux_tokenizer_open(&tokenizer, info.tokenizer_path, &e), &e);
    check(moeflux_sampler_new(&sampler, &greedy, info.vocab_size, tokenizer, &e), &e);
    check(moeflux_session_new(&session, model, MAX_PROMPT + MAX_ANSWER, &e), &e);

    int64_t n = moeflux_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), false, ids, MAX_PROMPT, &e);
    check(n, &e);
    if (n > MAX_PROMPT)
        return fprintf(stderr, "generate: %lld tokens, expected at most %d\n", (long long)n, MAX_PROMPT), 1;
    moeflux_sampler_begin_answer(sampler);
    float *logits = calloc(info.vocab_size, sizeof *logits);
    for (int i = 0; logits && i < MAX_ANSWER; i++, n = 1) {
        const struct moeflux_outputs outputs = {.logits = logits};
        const char *bytes;
        check(moeflux_session_eval(session, ids, (uint32_t)n, &outputs, &e), &e);
        check(ids[0] = moeflux_sampler_pick(sampler, logits, &e), &e);
        if (info.n_eos > 0 && ids[0] == info.eos[0])
            break;
        moeflux_sampler_accept(sampler, ids[0]);
        size_t len = moeflux_tokenizer_bytes(tokenizer, ids[0], &bytes);
        fwrite(bytes, 1, len, stdout);
    }
    putchar('\n');
    free(logits);
    moeflux_session_free(session);
    moeflux_sampler_free(sampler);
    moeflux_tokenizer_close(tokenizer);
    moeflux_model_close(model);
}
