#include "generate/generator.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/breakers.h"
#include "generate/constrain.h"

void generator_report(struct generator *s, const struct moeflux_progress *p)
{
    s->progress = *p;
    if (s->tokenizer)
        tokenizer_set_progress(s->tokenizer, p);
}

/* Gives the generator its own copies of what `info` borrows from the model. */
static int keep_info(struct generator *s, struct moeflux_err *e)
{
    struct moeflux_model_info *i = &s->info;
    const char **const texts[GENERATOR_TEXTS] = {&i->dir,      &i->architecture,   &i->device,
                                                 &i->backend,  &i->tokenizer_path, &i->chat_template,
                                                 &i->expert_io};
    for (int k = 0; k < GENERATOR_TEXTS; k++) {
        if (*texts[k] && !(s->texts[k] = mem_text(*texts[k], e)))
            return ERR_MEMORY;
        *texts[k] = s->texts[k];
    }
    if (!(s->eos = mem_new(i->n_eos + 1, sizeof *s->eos, e)))
        return ERR_MEMORY;
    if (i->n_eos)
        memcpy(s->eos, i->eos, i->n_eos * sizeof *s->eos);
    i->eos = s->eos;
    return 0;
}

static void free_info(struct generator *s)
{
    for (int k = 0; k < GENERATOR_TEXTS; k++)
        free(s->texts[k]);
    free(s->eos);
}

void generator_set_models(struct generator *s, struct moeflux_model *const *models, uint32_t n)
{
    s->model = models[0];
    s->n_copies = n - 1;
    memcpy(s->copies, models + 1, (n - 1) * sizeof(struct moeflux_model *));
}

int generator_of_models(struct generator *s, struct moeflux_model *const *models, uint32_t n,
                        struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *s = (struct generator){.info = moeflux_model_get_info(models[0])};
    int rc = keep_info(s, e);
    if (!rc && s->info.tokenizer_path && !(s->tokenizer = tokenizer_open(s->info.tokenizer_path, &why)))
        rc = err_set(e, why.code, "%s", why.text);
    if (rc) {
        free_info(s);
        *s = (struct generator){0};
        return rc;
    }
    s->dir = s->info.dir;
    generator_set_models(s, models, n);
    return 0;
}

struct moeflux_model *generator_copy(const struct generator *s, uint32_t idx)
{
    return idx ? s->copies[idx - 1] : s->model;
}

void generator_get_stats(const struct generator *s, struct moeflux_stats *out)
{
    struct moeflux_stats more;
    moeflux_model_get_stats(s->model, out);
    for (uint32_t i = 0; i < s->n_copies; i++) {
        moeflux_model_get_stats(s->copies[i], &more);
        moeflux_stats_add(out, &more);
    }
}

int generator_use_chat(struct generator *s, struct chat_reasoning reasoning, const char *what,
                       struct moeflux_err *e)
{
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which %s needs", s->dir, what);
    /* chat_open is slow: it renders the template several times to see how it behaves. */
    if (s->has_chat && s->chat.thinking == reasoning.thinking && s->chat.effort == reasoning.effort) {
        s->chat.now = time(NULL);
        return 0;
    }
    chat_free(&s->chat);
    int rc = chat_open(&s->chat, s->tokenizer, s->info.chat_template, reasoning.thinking, time(NULL), e);
    if (rc == 0)
        rc = chat_use_effort(&s->chat, reasoning.effort, e);
    s->has_chat = rc == 0;
    return rc;
}

int generator_set_template(struct generator *s, const char *text, struct json_t *variables, const char *what,
                           struct moeflux_err *e)
{
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which %s needs", s->dir, what);
    const char *chat = text ? text : tokenizer_chat_template(s->tokenizer);
    const char *tools = text ? NULL : tokenizer_tool_template(s->tokenizer);
    struct tokenizer_templates t = {.variables = json_incref(variables)};
    int rc = (chat && !(t.chat = mem_text(chat, e))) || (tools && !(t.tools = mem_text(tools, e)))
                 ? ERR_MEMORY
                 : 0;
    if (!rc) {
        tokenizer_swap_templates(s->tokenizer, &t);
        chat_free(&s->chat);
        s->has_chat = false;
        /* A model without a template is not asked for one before it needs it. */
        rc = text ? generator_use_chat(s, (struct chat_reasoning){0}, what, e) : 0;
        if (rc)
            tokenizer_swap_templates(s->tokenizer, &t);
    }
    tokenizer_free_templates(&t);
    return rc;
}

int generator_check_ids(const struct generator *s, const struct token_list *ids, struct moeflux_err *e)
{
    for (size_t i = 0; i < ids->n; i++)
        if ((uint32_t)ids->ids[i] >= s->info.vocab_size)
            return err_set(e, ERR_FORMAT, "%s is another model's: it makes token %d, expected 0 to %u",
                           s->info.tokenizer_path, ids->ids[i], s->info.vocab_size - 1);
    return 0;
}

/* Returns the bitmap of ids that may be sampled: padded vocabularies have rows without a token, and a model
 * may suppress some of its tokens. */
static uint8_t *allowed_ids(const struct generator *s, struct moeflux_err *e)
{
    uint8_t *bits = mem_new(s->info.vocab_size / 8 + 1, 1, e);
    for (uint32_t id = 0; bits && id < s->info.vocab_size; id++)
        if (!s->tokenizer || tokenizer_has(s->tokenizer, (int32_t)id))
            bits[id / 8] |= (uint8_t)(1u << (id % 8));
    for (size_t i = 0; bits && i < s->info.n_suppressed; i++) {
        uint32_t id = (uint32_t)s->info.suppressed[i];
        if (id < s->info.vocab_size)
            bits[id / 8] &= (uint8_t) ~(1u << (id % 8));
    }
    return bits;
}

int generator_new_sampler(struct generator *s, const struct moeflux_sampler_options *o, const int32_t *ids,
                          size_t n, struct moeflux_err *e)
{
    const struct sampler_breakers *breakers = NULL;
    struct moeflux_err own = {0};
    e = e ? e : &own;
    int rc = sampler_check(o, e);
    if (!rc)
        rc = breakers_cache_get(&s->breakers, s->tokenizer, o, &breakers, e);
    struct sampler *fresh = rc ? NULL : sampler_new(o, breakers, s->info.vocab_size, s->allowed, e);
    if (!fresh)
        return rc ? rc : (int)e->code;
    sampler_free(s->sampler);
    s->sampler = fresh;
    s->seed = o->seed;
    for (size_t i = 0; i < n; i++)
        sampler_accept(fresh, ids[i]);
    return 0;
}

int generator_prepare(struct generator *s, uint32_t max_context, struct moeflux_err *e)
{
    uint32_t own = s->info.max_context;
    s->max_context = max_context ? max_context : MOEFLUX_DEFAULT_CONTEXT;
    if (!max_context && own && own < s->max_context)
        s->max_context = own;
    if (own && s->max_context > own)
        return err_set(e, ERR_USAGE, "a context of %u tokens, expected 1 to %u, the model's own maximum",
                       s->max_context, own);
    if (!s->logits && !(s->logits = mem_new(s->info.vocab_size, sizeof(float), e)))
        return ERR_MEMORY;
    if (s->tokenizer)
        s->most_prompt_bytes = tokenizer_most_bytes(s->tokenizer, s->max_context);
    bool all = s->allowed || (!s->tokenizer && !s->info.n_suppressed);
    return !all && !(s->allowed = allowed_ids(s, e)) ? ERR_MEMORY : 0;
}

int generator_start(struct generator *s, uint32_t max_context, const struct moeflux_sampler_options *o,
                    struct moeflux_err *e)
{
    int rc = generator_prepare(s, max_context, e);
    if (!rc)
        rc = moeflux_session_new(&s->sequence, s->model, s->max_context, e);
    return rc ? rc : generator_new_sampler(s, o, NULL, 0, e);
}

void generator_share(struct generator *s, const struct generator *of, uint32_t copy)
{
    *s = *of;
    s->model = generator_copy(of, copy);
    s->n_copies = 0;
    s->chat = (struct chat){0};
    s->has_chat = false;
    s->constrain = NULL;
    s->breakers = (struct breakers_cache){0};
    s->sequence = NULL;
    s->sampler = NULL;
    s->logits = NULL;
    s->draft = NULL;
}

void generator_unshare(struct generator *s)
{
    constrain_free(s->constrain);
    free(s->logits);
    sampler_free(s->sampler);
    breakers_cache_free(&s->breakers);
    chat_free(&s->chat);
    *s = (struct generator){0};
}

/* Evaluates a token whose logits alone are wanted. */
static int evaluate_one(struct generator *s, int32_t id, struct moeflux_err *e)
{
    return s->evaluator.token ? s->evaluator.token(s->evaluator.ctx, s, id, e) : draft_token(s, id, e);
}

static int evaluate(struct generator *s, const int32_t *ids, size_t n, const struct moeflux_outputs *outputs,
                    struct moeflux_err *e)
{
    uint32_t before = moeflux_session_position(s->sequence);
    bool is_plain = !outputs->each_logits && !outputs->hidden;
    int rc = s->room.make ? s->room.make(s->room.ctx, s->sequence, n, e) : 0;
    if (rc)
        return rc;
    if (n == 1 && is_plain && outputs->logits)
        rc = evaluate_one(s, *ids, e);
    else if (n > 0 && is_plain && s->evaluator.prompt)
        rc = s->evaluator.prompt(s->evaluator.ctx, s, ids, (uint32_t)n, outputs->logits != NULL, e);
    else
        rc = moeflux_session_eval(s->sequence, ids, (uint32_t)n, outputs, e);
    /* After an interruption the sequence has only the first ids, after a failure none. */
    uint32_t after = moeflux_session_position(s->sequence);
    for (uint32_t i = 0; before + i < after; i++)
        sampler_accept(s->sampler, ids[i]);
    return rc;
}

int generator_eval(struct generator *s, const int32_t *ids, size_t n, const struct moeflux_outputs *outputs,
                   struct moeflux_err *e)
{
    struct moeflux_outputs all = outputs ? *outputs : (struct moeflux_outputs){0};
    all.logits = s->logits;
    return evaluate(s, ids, n, &all, e);
}

int generator_choose(struct generator *s, int32_t *id, struct moeflux_err *e)
{
    struct moeflux_err why;
    *id = sampler_pick(s->sampler, s->logits, &why);
    if (*id < 0)
        return err_set(e, why.code, "position %u: %.400s", moeflux_session_position(s->sequence) - 1,
                       why.text);
    return 0;
}

int generator_feed(struct generator *s, const int32_t *ids, size_t n, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    return evaluate(s, ids, n, &none, e);
}

bool generator_is_eos(const struct generator *s, int32_t id)
{
    for (uint32_t i = 0; i < s->info.n_eos; i++)
        if (s->info.eos[i] == id)
            return true;
    /* A model's configuration may not list the end of a call. */
    return s->chat.harmony.is_used && id == s->chat.harmony.call;
}

void generator_close(struct generator *s)
{
    constrain_free(s->constrain);
    free(s->logits);
    free(s->allowed);
    sampler_free(s->sampler);
    breakers_cache_free(&s->breakers);
    moeflux_session_free(s->sequence);
    chat_free(&s->chat);
    tokenizer_free(s->tokenizer);
    free_info(s);
    *s = (struct generator){0};
}
