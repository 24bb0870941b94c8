#include "cli/measure/compare_table.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "cli/measure/compare.h"
#include "cli/output.h"
#include "cli/report/stats.h"
#include "cli/report/table.h"

/* Scripts read CSV by position: new keys go to the end. Columns without a key are in the plain table only. */
enum column {
    SETTING,
    EXPERT_BITS,
    BITS,
    TOKEN_MB,
    TOKEN_BYTES,
    PERPLEXITY,
    PERPLEXITY_ERROR,
    KL,
    KL_ERROR,
    KL_SHOWN,
    KL_ERROR_SHOWN,
    TOP1,
    RATE,
    MODEL,
    DEVICE,
    HITS,
    READ_BYTES,
    READ_KB,
    N_COLUMNS
};

static const struct table_column columns[N_COLUMNS] = {
    [SETTING] = {"setting", "setting", -1},
    [EXPERT_BITS] = {"expert_bits_per_weight", "expert bits", 2},
    [BITS] = {"bits_per_weight", "bits", 2},
    [TOKEN_MB] = {NULL, "MB/token", 2},
    [TOKEN_BYTES] = {"bytes_per_token", NULL, 0},
    [PERPLEXITY] = {"perplexity", "perplexity", 4},
    [PERPLEXITY_ERROR] = {"perplexity_standard_error", "+-", 4},
    [KL] = {"kl_divergence", NULL, 12},
    [KL_ERROR] = {"kl_divergence_standard_error", NULL, 12},
    [KL_SHOWN] = {NULL, "KL", 6},
    [KL_ERROR_SHOWN] = {NULL, "+-", 6},
    [TOP1] = {"top1_agreement_percent", "top-1 %", 2},
    [RATE] = {"tok_s", "tok/s", 1},
    [MODEL] = {"model", NULL, -1},
    [DEVICE] = {"device", NULL, -1},
    [HITS] = {"hit_rate_percent", "hits %", 1},
    [READ_BYTES] = {"read_bytes_per_token", NULL, 0},
    [READ_KB] = {NULL, "kB read", 1},
};

static void fill_row(struct table_cell *row, const struct compared *c)
{
    const struct moeflux_needs *n = &c->needs;
    bool is_first = c->kl.n == 0;
    double all_bytes = (double)n->dense_bytes + (double)n->expert_bytes, perplexity = exp(c->nll.mean);
    double expert_bytes = (double)n->token_expert_bytes * c->n_experts / n->top_k;
    double token_bytes = (double)n->token_dense_bytes + expert_bytes;
    row[SETTING].text = c->name;
    row[EXPERT_BITS].number = 8 * (double)n->expert_bytes / (double)n->n_expert_params;
    row[BITS].number = 8 * all_bytes / (double)n->n_params;
    row[TOKEN_MB].number = token_bytes / 1e6;
    row[TOKEN_BYTES].number = token_bytes;
    row[PERPLEXITY].number = perplexity;
    row[PERPLEXITY_ERROR].number = perplexity * average_error(&c->nll);
    row[KL].number = row[KL_SHOWN].number = is_first ? (double)NAN : c->kl.mean;
    row[KL_ERROR].number = row[KL_ERROR_SHOWN].number = is_first ? (double)NAN : average_error(&c->kl);
    row[TOP1].number = is_first ? (double)NAN : 100 * (double)c->n_agreed / (double)c->kl.n;
    row[RATE].number = stats_rate(c->n_tokens, c->ns);
    row[MODEL].text = c->options.model;
    row[DEVICE].text = c->device;
    row[HITS].number = 100 * c->hit_rate;
    row[READ_BYTES].number = c->read_bytes;
    row[READ_KB].number = c->read_bytes / 1e3;
}

static int print(const struct options *o, const struct table *table, const struct compared *first,
                 uint32_t context, struct output *out, struct moeflux_err *e)
{
    if (o->json) {
        json_t *object = json_object();
        json_object_set_new(object, "text", output_json_text(o->perplexity, strlen(o->perplexity)));
        json_object_set_new(object, "tokens_scored", json_integer((json_int_t)first->nll.n));
        json_object_set_new(object, "context", json_integer(context));
        json_object_set_new(object, "results", table_json(table));
        return output_json(out, object, e);
    }
    if (!o->csv)
        output_addf(out,
                    "%" PRIu64 " tokens scored in windows of %" PRIu32 "; KL divergence from the first\n",
                    first->nll.n, context);
    table_print(table, o->csv ? TABLE_CSV : TABLE_PLAIN, out);
    return output_flush(out, e);
}

int compare_table_print(const struct options *o, const struct compared *all, uint32_t n, uint32_t context,
                        struct output *out, struct moeflux_err *e)
{
    struct table_cell *cells = mem_new((uint64_t)n * N_COLUMNS, sizeof *cells, e);
    if (!cells)
        return ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        fill_row(&cells[i * N_COLUMNS], &all[i]);
    const struct table table = {columns, N_COLUMNS, n, cells};
    int rc = print(o, &table, all, context, out, e);
    free(cells);
    return rc;
}
