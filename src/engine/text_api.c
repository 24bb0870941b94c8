/* The tokenizer and the sampler of moeflux.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/texts.h"
#include "engine/breakers.h"
#include "engine/run/batched.h"
#include "engine/sequence.h"
#include "engine/session.h"
#include "engine/text_api.h"
#include "moeflux.h"
#include "sample/sampler.h"
#include "sample/sampler_fields.h"
#include "text/tokenizer/tokenizer.h"

struct moeflux_sampler {
    struct sampler *sampler;
};

/* --- the tokenizer --- */

int moeflux_tokenizer_open(struct moeflux_tokenizer **out, const char *path, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    if (!path)
        return err_set(e, ERR_USAGE, "no tokenizer.json was named: the model's directory may have none");
    *out = mem_new(1, sizeof **out, &why);
    if (*out)
        (*out)->tokenizer = tokenizer_open(path, &why);
    if (*out && (*out)->tokenizer)
        return 0;
    moeflux_tokenizer_close(*out);
    *out = NULL;
    return err_set(e, why.code, "%s", why.text);
}

void moeflux_tokenizer_close(struct moeflux_tokenizer *t)
{
    if (t)
        tokenizer_free(t->tokenizer);
    free(t);
}

void moeflux_tokenizer_set_progress(struct moeflux_tokenizer *t, const struct moeflux_progress *p)
{
    tokenizer_set_progress(t->tokenizer, p);
}

int64_t moeflux_tokenizer_encode(const struct moeflux_tokenizer *t, const char *text, size_t len,
                                 bool parse_special, int32_t *ids, size_t cap, struct moeflux_err *e)
{
    int rc = err_need(e, "tokenizer", t, "text", len ? text : "", "list of ids", cap ? (void *)ids : "");
    if (rc)
        return rc;
    struct token_list list = {0};
    rc = tokenizer_encode(t->tokenizer, text, len, parse_special ? SPECIALS_AS_TOKENS : SPECIALS_AS_TEXT,
                          &list, NULL, e);
    if (rc == 0 && list.n > 0 && cap > 0)
        memcpy(ids, list.ids, size_min(list.n, cap) * sizeof *ids);
    int64_t n = rc < 0 ? rc : (int64_t)list.n;
    token_list_free(&list);
    return n;
}

int64_t moeflux_tokenizer_encode_all(const struct moeflux_tokenizer *t, const char *text, size_t len,
                                     bool parse_special, bool add_bos, int32_t **ids, struct moeflux_err *e)
{
    int null = err_need(e, "tokenizer", t, "text", len ? text : "", "place of the ids", ids);
    if (null)
        return null;
    enum token_specials specials = parse_special ? SPECIALS_AS_TOKENS : SPECIALS_AS_TEXT;
    struct token_list list = {0};
    int rc = add_bos ? tokenizer_encode_prompt(t->tokenizer, text, len, specials, &list, NULL, e)
                     : tokenizer_encode(t->tokenizer, text, len, specials, &list, NULL, e);
    if (rc)
        token_list_free(&list);
    *ids = list.ids;
    return rc ? rc : (int64_t)list.n;
}

size_t moeflux_tokenizer_bytes(const struct moeflux_tokenizer *t, int32_t id, const char **bytes)
{
    return tokenizer_bytes(t->tokenizer, id, bytes);
}

bool moeflux_tokenizer_is_special(const struct moeflux_tokenizer *t, int32_t id)
{
    return tokenizer_is_special(t->tokenizer, id);
}

int32_t moeflux_tokenizer_special_id(const struct moeflux_tokenizer *t, const char *text)
{
    return tokenizer_added_id(t->tokenizer, text);
}

int32_t moeflux_tokenizer_bos(const struct moeflux_tokenizer *t)
{
    return tokenizer_bos(t->tokenizer);
}

const char *moeflux_tokenizer_chat_template(const struct moeflux_tokenizer *t)
{
    return tokenizer_chat_template(t->tokenizer);
}

/* --- the sampler --- */

struct moeflux_sampler_options moeflux_sampler_defaults(void)
{
    static const char *const breakers[] = {"\n", ":", "\"", "*"};
    return (struct moeflux_sampler_options){.temperature = 1,
                                            .top_p = 1,
                                            .repeat_penalty = 1,
                                            .typical_p = 1,
                                            .xtc_threshold = 0.1f,
                                            .dry_base = 1.75f,
                                            .dry_allowed_length = 2,
                                            .dry_penalty_last_n = 64,
                                            .dry_sequence_breakers = breakers,
                                            .n_dry_sequence_breakers = sizeof breakers / sizeof *breakers};
}

/* Returns a bitmap of the ids that have a token. */
static uint8_t *known_ids(const struct moeflux_tokenizer *t, uint32_t n_ids, struct moeflux_err *e)
{
    uint8_t *known = mem_new((size_t)n_ids / 8 + 1, 1, e);
    for (uint32_t i = 0; known && i < n_ids; i++)
        if (tokenizer_has(t->tokenizer, (int32_t)i))
            known[i / 8] |= (uint8_t)(1u << i % 8);
    return known;
}

const struct moeflux_sampler_field *moeflux_sampler_fields(void)
{
    return sampler_fields;
}

/* Returns whether the list, with commas between its members, has the name. */
static bool has_name(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at; at += *at == ',') {
        size_t len = strcspn(at, ","), i = 0;
        while (len == n && i < n && (at[i] == '-' ? '_' : at[i]) == (name[i] == '-' ? '_' : name[i]))
            i++;
        if (len == n && i == n)
            return true;
        at += len;
    }
    return false;
}

const struct moeflux_sampler_field *moeflux_sampler_find(const char *name)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        if (has_name(sampler_fields[i].name, name) || has_name(sampler_fields[i].flags, name))
            return &sampler_fields[i];
    return NULL;
}

double moeflux_sampler_get(const struct moeflux_sampler_options *o, const struct moeflux_sampler_field *f)
{
    float real;
    uint32_t whole;
    if (f->kind == MOEFLUX_SAMPLER_LIST)
        return o->n_dry_sequence_breakers;
    memcpy(&real, (const char *)o + f->at, sizeof real);
    memcpy(&whole, (const char *)o + f->at, sizeof whole);
    return f->kind == MOEFLUX_SAMPLER_REAL ? (double)real : whole;
}

int moeflux_sampler_set(struct moeflux_sampler_options *o, const char *name, double value,
                        struct moeflux_err *e)
{
    int null = err_need(e, "description of the sampler", o, "name of the option", name);
    if (null)
        return null;
    const struct moeflux_sampler_field *f = moeflux_sampler_find(name);
    float real = (float)value;
    if (!f || f->kind == MOEFLUX_SAMPLER_LIST)
        return err_set(e, ERR_USAGE, "a sampler has no number \"%.60s\"", name);
    bool is_whole = f->kind == MOEFLUX_SAMPLER_WHOLE;
    if (!(value >= f->lo && value <= f->hi) || (is_whole && value != (double)(uint32_t)value))
        return err_set(e, ERR_USAGE, "%s is %g, expected a %snumber from %g to %g", f->name, value,
                       is_whole ? "whole " : "", f->lo, f->hi);
    /* top_p 0 means the likeliest token alone; a very small value keeps just that. */
    if (value == 0 && f->at == offsetof(struct moeflux_sampler_options, top_p))
        real = 1e-9f;
    uint32_t whole = (uint32_t)(is_whole ? value : 0);
    memcpy((char *)o + f->at, is_whole ? (const void *)&whole : &real, sizeof whole);
    return 0;
}

int moeflux_sampler_check(const struct moeflux_sampler_options *o, struct moeflux_err *e)
{
    int null = err_need(e, "description of the sampler", o);
    if (null)
        return null;
    return sampler_check(o, e);
}

/* Checks the list of texts. */
static int check_breakers(const struct moeflux_sampler_options *o, const struct moeflux_tokenizer *t,
                          struct moeflux_err *e)
{
    if (o->n_dry_sequence_breakers > TEXTS_MAX)
        return err_set(e, ERR_USAGE, "dry_sequence_breakers: %u texts, expected at most %d",
                       o->n_dry_sequence_breakers, TEXTS_MAX);
    if (o->n_dry_sequence_breakers && o->dry_multiplier > 0 && !t)
        return err_set(e, ERR_USAGE,
                       "dry_sequence_breakers: %u texts, which need a tokenizer (without one: n 0)",
                       o->n_dry_sequence_breakers);
    if (o->n_dry_sequence_breakers && !o->dry_sequence_breakers)
        return err_set(e, ERR_USAGE, "dry_sequence_breakers: NULL, expected %u texts",
                       o->n_dry_sequence_breakers);
    for (uint32_t i = 0; i < o->n_dry_sequence_breakers; i++) {
        const char *text = o->dry_sequence_breakers[i];
        if (!text || !*text)
            return err_set(e, ERR_USAGE, "dry_sequence_breakers[%u]: %s, expected 1 to %d bytes", i,
                           text ? "an empty text" : "NULL", SAMPLER_MAX_BREAKER);
    }
    return 0;
}

static struct sampler *new_sampler(const struct moeflux_sampler_options *o, uint32_t n_ids,
                                   const struct moeflux_tokenizer *t, struct moeflux_err *e)
{
    struct sampler_breakers breakers = {0};
    struct sampler *made = NULL;
    uint8_t *known = t ? known_ids(t, n_ids, e) : NULL;
    if ((!t || known) && check_breakers(o, t, e) == 0 && sampler_check(o, e) == 0 &&
        breakers_make(t ? t->tokenizer : NULL, o, &breakers, e) == 0)
        made = sampler_new(o, &breakers, n_ids, known, e);
    breakers_free(&breakers);
    free(known);
    return made;
}

int moeflux_sampler_new(struct moeflux_sampler **out, const struct moeflux_sampler_options *o, uint32_t n_ids,
                        const struct moeflux_tokenizer *t, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    if (!o)
        return err_need(e, "description of the sampler", o);
    *out = mem_new(1, sizeof **out, &why);
    if (*out)
        (*out)->sampler = new_sampler(o, n_ids, t, &why);
    if (*out && (*out)->sampler)
        return 0;
    moeflux_sampler_free(*out);
    *out = NULL;
    return err_set(e, why.code, "%s", why.text);
}

void moeflux_sampler_free(struct moeflux_sampler *s)
{
    if (s)
        sampler_free(s->sampler);
    free(s);
}

void moeflux_sampler_accept(struct moeflux_sampler *s, int32_t id)
{
    sampler_accept(s->sampler, id);
}

void moeflux_sampler_begin_answer(struct moeflux_sampler *s)
{
    sampler_begin_answer(s->sampler);
}

void moeflux_sampler_reset(struct moeflux_sampler *s)
{
    sampler_reset(s->sampler);
}

void moeflux_sampler_restrict(struct moeflux_sampler *s, const uint64_t *ids)
{
    sampler_set_mask(s->sampler, ids);
}

int moeflux_session_step(struct moeflux_session *s, int32_t id, struct moeflux_sampler *sampler, bool more,
                         int32_t *next, struct moeflux_err *e)
{
    int null = err_need(e, "session", s, "sampler", sampler, "place of the token", next);
    if (null)
        return null;
    return sequence_step(s, id, sampler->sampler, more, next, e);
}

/* Returns room for the logits of the session's last token. */
static float *logits_of(struct moeflux_session *s, struct moeflux_err *e)
{
    if (!s->logits)
        s->logits = mem_new(s->model->dir.config.vocab_size, sizeof *s->logits, e);
    return s->logits;
}

/* Chooses the next tokens of all sequences, which have advanced, also of those after one that fails. */
static int choose_all(const struct batched_token *tokens, uint32_t n, struct moeflux_sampler *const *samplers,
                      int32_t *next, struct moeflux_err *e)
{
    int first = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct moeflux_err why = {0};
        int rc = batched_choose(&tokens[i], samplers[i]->sampler, &next[i], &why);
        if (rc < 0)
            next[i] = -1;
        if (rc < 0 && first == 0)
            first = batched_blame(i, &why, e);
    }
    return first;
}

int moeflux_step_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         struct moeflux_sampler *const *samplers, int32_t *next, struct moeflux_err *e)
{
    int null = err_need(e, "list of sessions", list, "list of ids", ids, "list of samplers", samplers,
                        "list of tokens", next);
    if (null)
        return null;
    struct batched_token tokens[MOEFLUX_MAX_PARALLEL];
    if (n == 0 || n > MOEFLUX_MAX_PARALLEL)
        return err_set(e, ERR_USAGE, "a batch of %u sequences, expected 1 to %d", n, MOEFLUX_MAX_PARALLEL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t vocab = list[i]->model->dir.config.vocab_size,
                 n_ids = sampler_next_rule(samplers[i]->sampler, 0).n_ids;
        if (n_ids != vocab)
            return err_set(e, ERR_USAGE, "sampler %u has %u ids, the model has %u", i, n_ids, vocab);
        tokens[i] = (struct batched_token){.session = list[i],
                                           .id = ids[i],
                                           .logits = logits_of(list[i], e),
                                           .sampler = samplers[i]->sampler};
        if (!tokens[i].logits)
            return ERR_MEMORY;
    }
    int rc = batched_eval(tokens, n, NULL, 0, NULL, NULL, e);
    return rc < 0 ? rc : choose_all(tokens, n, samplers, next, e);
}

int32_t moeflux_sampler_pick(struct moeflux_sampler *s, const float *logits, struct moeflux_err *e)
{
    int null = err_need(e, "sampler", s, "list of logits", logits);
    if (null)
        return null;
    return sampler_pick(s->sampler, logits, e);
}
