#include "cli/batch/item.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialect.h"
#include "cli/batch/times.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/output.h"
#include "cli/report/answer_fields.h"
#include "cli/report/stats.h"
#include "generate/generator.h"

/* ---- reading ---- */

static int read_openai(struct batch_item *b, const json_t *root, const struct generator *g,
                       const struct batch_defaults *defaults, struct moeflux_err *e)
{
    struct api_request_defaults of = {.options = defaults->options};
    b->is_openai = true;
    if (of.options.seed < 0)
        of.options.seed = (int64_t)(defaults->base_seed + b->line - 1);
    int rc = batch_line_read(&b->openai, root, b->line, defaults->model, g, &of, e);
    b->has_id = b->openai.custom_id != NULL;
    return rc;
}

static int read_own(struct batch_item *b, const char *text, size_t len, const struct batch_defaults *defaults,
                    struct moeflux_err *e)
{
    struct request *r = &b->own.request;
    int rc = request_read(r, text, len, b->line, &defaults->options, e);
    b->has_id = r->id && !json_is_null(r->id);
    /* Without -s every line has a seed of its own, so that equal prompts get different answers. */
    b->own.seed = r->options.seed < 0 ? defaults->base_seed + b->line - 1 : (uint64_t)r->options.seed;
    return rc;
}

/* Gives a line that cannot be parsed the form of the lines before it. */
static void give_form(struct batch_item *b, bool as_openai)
{
    if (!as_openai || json_object_size(b->own.request.fields) > 0)
        return;
    b->is_openai = true;
    b->openai.line = b->line;
}

int batch_item_read(struct batch_item **out, const char *text, size_t len, uint64_t line, size_t max_bytes,
                    const struct generator *g, const struct batch_defaults *defaults, bool *as_openai,
                    struct moeflux_err *e)
{
    struct batch_item *b = *out = mem_new(1, sizeof *b, e);
    if (!b)
        return ERR_MEMORY;
    int rc;
    b->line = line;
    b->tokenizer = defaults->tokenizer;
    b->times = defaults->times;
    json_t *root = text ? batch_line_parse(text, len) : NULL;
    if (root)
        rc = read_openai(b, root, g, defaults, e);
    else if (text)
        rc = read_own(b, text, len, defaults, e);
    else
        rc = request_too_long(&b->own.request, line, max_bytes, e);
    json_decref(root);
    if (!b->is_openai && rc)
        give_form(b, *as_openai);
    else
        *as_openai = b->is_openai;
    b->key = json_id_key(b->is_openai ? b->openai.custom_id : b->own.request.id, line);
    return b->key ? rc : err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, line);
}

int batch_item_encode(struct batch_item *b, struct generator *g, struct moeflux_err *e)
{
    /* A line of OpenAI's form makes its tokens while it is read. */
    if (b->is_openai)
        return 0;
    int rc = request_encode(&b->own.request, g, e);
    return rc ? rc : request_check_length(&b->own.request, g->max_context, e);
}

struct choice *batch_item_choices(struct batch_item *b, uint32_t *n)
{
    *n = b->is_openai ? b->openai.request.n_choices : 1;
    return b->is_openai ? b->openai.request.choices : &b->own;
}

/* ---- results ---- */

static char *own_error(const struct batch_item *b, const char *text)
{
    json_t *object = json_object();
    json_object_set(object, "id", b->own.request.id ? b->own.request.id : json_null());
    json_object_set_new(object, "line", json_integer((json_int_t)b->line));
    json_object_set_new(object, "error", output_json_text(text, strlen(text)));
    char *line = object ? json_dumps(object, 0) : NULL;
    json_decref(object);
    return line;
}

char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e)
{
    if (!b->is_openai)
        return own_error(b, e->text);
    /* There is a reply if the body was read, or is what is at fault. */
    if (b->openai.reply)
        refusal_of(&b->openai.refusal, rc, e);
    return b->openai.refusal.status ? batch_line_answer(&b->openai) : batch_line_error(&b->openai, e->text);
}

static char *own_answer(const struct choice *c, const struct moeflux_tokenizer *t,
                        const struct moeflux_answer_info *a)
{
    const struct request *r = &c->request;
    json_t *object = json_object();
    json_object_set(object, "id", r->id);
    json_object_set_new(object, "line", json_integer((json_int_t)r->line));
    answer_fields_add(object, t, a);
    json_object_set_new(object, "seed", json_integer((json_int_t)c->seed));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(a)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    char *line = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return line;
}

/* ---- on the worker's thread ---- */

static int begin(struct job *j, struct moeflux_err *e)
{
    struct batch_item *b = j->owner;
    for (uint32_t i = 0; i < j->n; i++)
        choice_reset(&j->choices[i]);
    return b->is_openai ? reply_reset(b->openai.reply, e) : 0;
}

static int keep_piece(struct job *j, const struct answer_piece *p, struct moeflux_err *e)
{
    const struct batch_item *b = j->owner;
    (void)e;
    if (b->is_openai)
        b->openai.reply->dialect->piece(b->openai.reply, j->at, p);
    return 0;
}

static void end_choice(struct job *j, const struct moeflux_answer_info *a)
{
    struct batch_item *b = j->owner;
    struct choice_result *r = &j->choices[j->at].result;
    if (b->times && !r->rc && !j->choices[j->at].score)
        batch_times_add(b->times, a);
    if (r->rc || j->at + 1 < j->n)
        return;
    b->result = b->is_openai ? batch_line_answer(&b->openai) : own_answer(&b->own, b->tokenizer, a);
    if (!b->result)
        r->rc = err_set(&r->error, ERR_MEMORY, "out of memory for a result");
}

const struct job_calls batch_item_calls = {begin, keep_piece, end_choice};

void batch_item_free(struct batch_item *b)
{
    if (!b)
        return;
    choice_free(&b->own);
    free(b->result);
    batch_line_free(&b->openai);
    free(b->key);
    free(b);
}
