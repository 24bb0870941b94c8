#include "engine/breakers.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "sample/dry.h"
#include "text/tokenizer/tokenizer.h"

struct makes {
    const struct tokenizer *tokenizer;
    struct sampler_breakers *out;
    size_t cap;
    struct moeflux_err *e;
};

static int add(struct makes *m, int32_t head, const struct token_list *tail)
{
    struct sampler_breakers *b = m->out;
    if (b->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 256;
        struct sampler_breaker *more = realloc(b->all, cap * sizeof *more);
        if (!more)
            return err_set(m->e, ERR_MEMORY, "out of memory for dry-sequence-breakers");
        b->all = more;
        m->cap = cap;
    }
    struct sampler_breaker *one = &b->all[b->n++];
    *one = (struct sampler_breaker){.head = head};
    one->n_tail = (uint32_t)size_min(tail ? tail->n : 0, SAMPLER_MAX_TAIL);
    if (one->n_tail)
        memcpy(one->tail, tail->ids, one->n_tail * sizeof *one->tail);
    return 0;
}

/* Adds the token if its end is the text's beginning: once for each such end. */
static int add_overlaps(struct makes *m, int32_t id, const char *bytes, size_t n, const char *text,
                        size_t len)
{
    int rc = 0;
    for (size_t at = n > len ? n - len : 0; at < n && !rc; at++) {
        struct token_list tail = {0};
        if (memcmp(bytes + at, text, n - at) != 0)
            continue;
        size_t done = n - at;
        rc = tokenizer_encode(m->tokenizer, text + done, len - done, SPECIALS_AS_TEXT, &tail, NULL, m->e);
        rc = rc ? rc : add(m, id, &tail);
        token_list_free(&tail);
    }
    return rc;
}

static int add_text(struct makes *m, const char *text)
{
    size_t len = strlen(text);
    int32_t n_ids = tokenizer_n_ids(m->tokenizer);
    int rc = 0;
    for (int32_t id = 0; id < n_ids && !rc; id++) {
        const char *bytes = NULL;
        size_t n = tokenizer_bytes(m->tokenizer, id, &bytes);
        if (n && memmem(bytes, n, text, len))
            rc = add(m, id, NULL);
        else if (n && len > 1)
            rc = add_overlaps(m, id, bytes, n, text, len);
    }
    return rc;
}

int breakers_make(const struct tokenizer *t, const struct moeflux_sampler_options *o,
                  struct sampler_breakers *out, struct moeflux_err *e)
{
    struct makes m = {.tokenizer = t, .out = out, .e = e};
    int rc = 0;
    *out = (struct sampler_breakers){0};
    for (uint32_t i = 0; t && dry_is_on(o) && i < o->n_dry_sequence_breakers && !rc; i++)
        rc = add_text(&m, o->dry_sequence_breakers[i]);
    return rc;
}

void breakers_free(struct sampler_breakers *b)
{
    free(b->all);
    *b = (struct sampler_breakers){0};
}

int breakers_cache_get(struct breakers_cache *c, const struct tokenizer *t,
                       const struct moeflux_sampler_options *o, const struct sampler_breakers **out,
                       struct moeflux_err *e)
{
    struct str key = {0};
    *out = NULL;
    if (!dry_is_on(o))
        return 0;
    for (uint32_t i = 0; i < o->n_dry_sequence_breakers; i++)
        str_add(&key, o->dry_sequence_breakers[i], strlen(o->dry_sequence_breakers[i]) + 1);
    int rc = str_ok(&key) ? 0 : err_set(e, ERR_MEMORY, "out of memory for dry-sequence-breakers");
    bool is_same = key.len == c->key.len && memcmp(str_text(&key), str_text(&c->key), key.len) == 0;
    if (!rc && !is_same) {
        breakers_cache_free(c);
        rc = breakers_make(t, o, &c->made, e);
        if (rc)
            breakers_free(&c->made);
    }
    if (!rc && !is_same) {
        c->key = key;
        key = (struct str){0};
    }
    str_free(&key);
    *out = &c->made;
    return rc;
}

void breakers_cache_free(struct breakers_cache *c)
{
    str_free(&c->key);
    breakers_free(&c->made);
}
