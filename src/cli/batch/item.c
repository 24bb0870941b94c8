#include "cli/batch/item.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialect.h"
#include "base/err.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "cli/batch/times.h"
#include "cli/output.h"
#include "cli/report/answer_fields.h"
#include "cli/report/stats.h"

int batch_item_read(struct batch_item **out, struct batch_reader *from, const char *text, size_t len,
                    uint64_t line, struct moeflux_err *e)
{
    struct batch_item *b = *out = mem_new(1, sizeof *b, e);
    return b ? batch_line_read(&b->line, from, text, len, line, e) : ERR_MEMORY;
}

/* ---- results ---- */

static char *own_error(const struct batch_line *l, const char *text)
{
    json_t *object = json_object(), *id = batch_line_id(l);
    json_object_set(object, "id", id ? id : json_null());
    json_object_set_new(object, "line", json_integer((json_int_t)l->line));
    json_object_set_new(object, "error", output_json_text(text, strlen(text)));
    char *line = json_sent_dump(object, 0);
    json_decref(object);
    return line;
}

char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e)
{
    struct batch_line *l = &b->line;
    if (!l->is_openai)
        return own_error(l, e->text);
    /* There is a reply if the body was read, or is what is at fault. */
    if (l->reply)
        refusal_of(&l->refusal, rc, e);
    return l->refusal.status ? batch_line_answer(l) : batch_line_error(l, e->text);
}

static char *own_answer(const struct batch_item *b, const struct moeflux_answer_info *a)
{
    json_t *object = json_object();
    json_object_set(object, "id", batch_line_id(&b->line));
    json_object_set_new(object, "line", json_integer((json_int_t)b->line.line));
    answer_fields_add(object, b->tokenizer, a);
    json_object_set_new(object, "seed", json_integer((json_int_t)a->seed));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(a)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    char *line = json_sent_dump(object, JSON_REAL_PRECISION(9));
    json_decref(object);
    return line;
}

int batch_item_set_result(struct batch_item *b, char *line, struct moeflux_err *e)
{
    b->result = line;
    batch_line_free(&b->line);
    return line ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
}

/* ---- on the pool's thread ---- */

static int begin(void *ctx, struct moeflux_err *e)
{
    struct batch_item *b = ctx;
    b->prompts = (struct batch_prompts){0};
    return b->line.is_openai ? reply_reset(b->line.reply, e) : 0;
}

static bool keep_piece(void *ctx, uint32_t idx, const struct moeflux_piece *p)
{
    const struct batch_line *l = &((const struct batch_item *)ctx)->line;
    if (l->is_openai)
        l->reply->dialect->piece(l->reply, idx, p);
    return true;
}

static void end_answer(void *ctx, uint32_t idx, const struct moeflux_answer_info *a, struct moeflux_err *err)
{
    struct batch_item *b = ctx;
    const struct api_request *r = &b->line.request;
    bool scores = b->line.is_openai && r->echo && r->logprobs;
    if (b->times && !err->code && !scores)
        batch_times_add(b->times, a);
    if (err->code)
        return;
    b->prompts.n += a->n_prompt;
    b->prompts.n_computed += a->n_prompt - a->n_reused;
    b->prompts.ns += a->prompt_ns;
    if (b->line.is_openai && idx + 1 < r->n_choices)
        return;
    b->answer = b->line.is_openai ? batch_line_answer(&b->line) : own_answer(b, a);
    if (!b->answer)
        err_set(err, ERR_MEMORY, "out of memory for a result");
}

int batch_item_new_job(struct batch_item *b, struct moeflux_pool *pool, struct moeflux_err *e)
{
    struct moeflux_job_options o = {.begin = begin, .piece = keep_piece, .ended = end_answer, .ctx = b};
    o.requests = batch_line_requests(&b->line, &o.n);
    return moeflux_job_new(&b->job, pool, &o, e);
}

void batch_item_free(struct batch_item *b)
{
    if (!b)
        return;
    moeflux_job_free(b->job);
    batch_line_free(&b->line);
    free(b->answer);
    free(b->result);
    free(b);
}
