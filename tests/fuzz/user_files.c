/* Files and lines that a user gives: conversations, use counts, requests, token ids; a list of files that a
 * server gives. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/batch/lines.h"
#include "cli/options/options.h"
#include "cli/prompt.h"
#include "cli/talk/saved.h"
#include "experts/replay.h"
#include "experts/trace.h"
#include "experts/usage.h"
#include "fuzz/target.h"
#include "generate/generator.h"
#include "generate/request.h"
#include "hub/listing.h"
#include "hub/selection.h"
#include "moeflux_chat.h"

void target_session(const uint8_t *data, size_t n)
{
    static const char *path;
    struct saved s;
    struct moeflux_err e = {0};
    if (!path) {
        target_need(setenv("XDG_STATE_HOME", target_dir(), 1) == 0, "no place for a session");
        path = saved_text_path("input", &e);
    }
    target_put(path, data, n);
    if (!target_answered(saved_read("input", &s, &e), &e))
        return;
    const struct moeflux_conversation_info info = moeflux_conversation_get_info(s.conversation);
    struct moeflux_turn *turns = calloc(info.n_turns + 1, sizeof *turns);
    moeflux_conversation_list(s.conversation, turns, info.n_turns);
    for (size_t i = 0; i < info.n_turns; i++) {
        const struct moeflux_turn *t = &turns[i];
        target_need(t->n_before + !t->answer <= t->n_asked && t->n_asked <= info.n_tokens,
                    "a turn beyond the tokens");
        target_need(i == 0 || turns[i - 1].n_asked <= t->n_before, "turns that do not ascend");
        target_need(t->answer || i + 1 == info.n_turns, "a question without an answer before the last");
    }
    free(turns);
    moeflux_conversation_free(s.conversation);
}

void target_usage(const uint8_t *data, size_t n)
{
    enum { LAYERS = 3, EXPERTS = 5 };
    uint32_t counts[LAYERS * EXPERTS] = {7, 0, UINT32_MAX}, was[LAYERS * EXPERTS];
    struct moeflux_err e = {0};
    memcpy(was, counts, sizeof was);
    int good = target_answered(usage_read(target_file(data, n), LAYERS, EXPERTS, counts, &e), &e);
    target_need(good || memcmp(counts, was, sizeof was) == 0, "counts of a refused file");
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        target_need(counts[i] >= was[i], "a count that became less");
}

static void replay_all(const struct trace *t)
{
    struct moeflux_err e = {0};
    for (int p = 0; p < REPLAY_POLICIES; p++) {
        struct replay_result r;
        target_need(replay_run(t, (enum replay_policy)p, t->shape.top_k, &r, NULL, &e) == 0, "no replay");
        target_need(r.n_hits + r.n_misses == t->n_uses, "uses that are neither hits nor misses");
    }
}

void target_trace(const uint8_t *data, size_t n)
{
    struct trace t;
    struct moeflux_err e = {0};
    if (!target_answered(trace_read(&t, target_file(data, n), &e), &e))
        return;
    uint64_t n_uses = 0;
    for (uint64_t i = 0; i < t.n_steps; i++) {
        const struct trace_step *s = &t.steps[i];
        target_need(s->layer < t.shape.n_layers && s->n > 0 && s->n_tokens > 0, "a step of nothing");
        target_need(s->first == n_uses, "steps that do not follow each other");
        n_uses += s->n;
    }
    target_need(n_uses == t.n_uses, "uses of no step");
    for (uint64_t i = 0; i < n_uses; i++)
        target_need(t.experts[i] < t.shape.n_experts, "an expert that the model does not have");
    /* What a policy learns grows with the square of the experts. */
    if ((uint64_t)t.shape.n_layers * t.shape.n_experts * t.shape.n_experts <= 1 << 20)
        replay_all(&t);
    trace_free(&t);
}

static void use_line(struct generator *s, const char *text, size_t len, uint64_t line)
{
    static const struct request_options defaults = {
        .predict = 8,
        .seed = -1,
        .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
        .raw = true};
    struct request r = {0};
    struct moeflux_err e = {0};
    if (target_answered(request_read(&r, text, len, line, &defaults, &e), &e)) {
        target_need(r.key && r.fields && r.id, "a request without its parts");
        if (target_answered(request_encode(&r, s, &e), &e))
            target_need(r.tokens.n > 0, "a request without tokens");
    }
    request_free(&r);
}

void target_batch(const uint8_t *data, size_t n)
{
    static struct generator s;
    struct lines l;
    struct moeflux_err e = {0};
    const char *text;
    size_t len;
    int rc;
    if (!s.tokenizer)
        s = (struct generator){.dir = "tests/models/tiny",
                               .max_context = 256,
                               .tokenizer = tokenizer_open("tests/models/tiny/tokenizer.json", &e)};
    target_need(s.tokenizer != NULL, "no tokenizer; run it from the repository's root");
    target_need(lines_open(&l, target_file(data, n), &e) == 0, "no lines");
    while ((rc = lines_next(&l, true, &text, &len, &e)) > 0)
        if (rc == LINES_LINE)
            use_line(&s, text, len, l.n);
    target_answered(rc, &e);
    lines_close(&l);
}

void target_tokens(const uint8_t *data, size_t n)
{
    const struct options o = {.tokens_in = target_file(data, n)};
    struct prompt p;
    struct moeflux_err e = {0};
    if (!target_answered(prompt_read(&p, &o, &e), &e))
        return;
    target_need(p.is_ids && p.ids.n > 0, "a prompt without ids");
    for (size_t i = 0; i < p.ids.n; i++)
        target_need(p.ids.ids[i] >= 0, "a negative id");
    prompt_free(&p);
}

void target_listing(const uint8_t *data, size_t n)
{
    struct listing l;
    struct selection_set set;
    struct moeflux_err e = {0};
    int good = target_answered(listing_read(&l, (const char *)data, n, "list", &e), &e);
    for (uint32_t i = 0; good && i < l.n; i++) {
        const char *name = l.files[i].name;
        target_need(name[0] != '/' && !strstr(name, "/../") && strncmp(name, "../", 3) != 0,
                    "a name that leaves");
        target_need(listing_is_hex(l.files[i].digest, digest_text_length(l.files[i].kind)), "no digest");
    }
    if (good)
        selection_make(&(struct selection){0}, &l);
    for (uint32_t i = 0; good && selection_next_set(&l, &i, &set);)
        target_need(set.n_files > 0 && i <= l.n, "a set without files");
    listing_free(&l);
}
