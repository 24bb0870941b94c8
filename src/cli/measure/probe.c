#include "cli/measure/probe.h"

#include <string.h>

#include "base/err.h"
#include "base/token_list.h"
#include "cli/measure/check_finite.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "moeflux.h"

enum { LOGITS_TOKENS = 0, LOGITS_LOGITS = 1 };

int probe_open(struct probe *p, const struct options *o, struct output *out, struct moeflux_err *e)
{
    *p = (struct probe){.logits = o->logits != NULL, .all = o->logits_all, .hidden = o->hidden != NULL};
    int rc = 0;
    if (o->logits && strcmp(o->logits, "-") == 0)
        p->text = out;
    else if (o->logits)
        rc = tensor_file_create(&p->logits_file, o->logits, e);
    if (!rc && o->hidden)
        rc = tensor_file_create(&p->hidden_file, o->hidden, e);
    return rc;
}

/* Prints a row as one line. Nine digits identify a float exactly. */
static int print_row(struct probe *p, const float *row, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < p->vocab_size; i++)
        output_addf(p->text, "%.9g%c", (double)row[i], i + 1 == p->vocab_size ? '\n' : ' ');
    return output_flush(p->text, e);
}

static int write_row(struct probe *p, uint32_t row_idx, const float *row, struct moeflux_err *e)
{
    int rc = check_finite_logits(row, p->vocab_size, p->all ? row_idx : p->n_tokens - 1, e);
    if (rc)
        return rc;
    if (p->text)
        return print_row(p, row, e);
    return tensor_file_write(&p->logits_file, LOGITS_LOGITS, (uint64_t)row_idx * p->vocab_size, row,
                             p->vocab_size, e);
}

static int on_logits(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    return write_row(ctx, pos, row, e);
}

static int on_hidden(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows,
                     struct moeflux_err *e)
{
    struct probe *p = ctx;
    uint64_t at = ((uint64_t)layer * p->n_tokens + pos) * p->width;
    int rc = check_finite_hidden(rows, n, p->width, layer, pos, e);
    return rc ? rc : tensor_file_write(&p->hidden_file, 0, at, rows, (uint64_t)n * p->width, e);
}

static int begin_logits(struct probe *p, const struct token_list *prompt, struct moeflux_err *e)
{
    const struct tensor_spec specs[] = {
        [LOGITS_TOKENS] = {"tokens", "I32", 1, {prompt->n}},
        [LOGITS_LOGITS] = {"logits", "F32", 2, {p->all ? prompt->n : 1, p->vocab_size}},
    };
    int rc = tensor_file_begin(&p->logits_file, specs, 2, e);
    return rc ? rc : tensor_file_write(&p->logits_file, LOGITS_TOKENS, 0, prompt->ids, prompt->n, e);
}

int probe_begin(struct probe *p, const struct moeflux_model_info *info, const struct token_list *prompt,
                struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    const struct tensor_spec hidden = {"hidden", "F32", 3, {info->n_layers + 1, prompt->n, info->hidden}};
    int rc = 0;
    p->n_tokens = (uint32_t)prompt->n;
    p->vocab_size = info->vocab_size;
    p->width = info->hidden;
    outputs->ctx = p;
    outputs->each_logits = p->all ? on_logits : NULL;
    outputs->hidden = p->hidden ? on_hidden : NULL;
    if (p->logits && !p->text)
        rc = begin_logits(p, prompt, e);
    if (!rc && p->hidden)
        rc = tensor_file_begin(&p->hidden_file, &hidden, 1, e);
    return rc;
}

int probe_finish(struct probe *p, const float *last, struct moeflux_err *e)
{
    int rc = 0;
    if (p->logits && !p->all)
        rc = write_row(p, 0, last, e);
    if (!rc && p->logits && !p->text)
        rc = tensor_file_commit(&p->logits_file, e);
    if (!rc && p->hidden)
        rc = tensor_file_commit(&p->hidden_file, e);
    return rc;
}

void probe_close(struct probe *p)
{
    tensor_file_free(&p->logits_file);
    tensor_file_free(&p->hidden_file);
}
