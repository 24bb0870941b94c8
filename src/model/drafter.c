#include "model/drafter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/family.h"
#include "model/tensor.h"

static const char FC[] = "model.mtp.fc.";

int drafter_config(struct config *c, const char *where, struct moeflux_err *e)
{
    uint32_t like = c->n_layers;
    while (like > 0 && config_mixer(c, like - 1)->kind == PART_DELTA_NET)
        like--;
    if (!c->family->has_drafter || like == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: the multi-token prediction of %s is not known", where,
                       c->family->name);
    c->layers[0] = c->layers[like - 1];
    c->drafts_as = c->n_layers;
    c->n_layers = 1;
    c->drafts = true;
    return 0;
}

/* Returns the name after `prefix`; NULL: it does not begin so. */
static const char *after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

/* Returns the name without what checkpoints have before the text model's names. */
static const char *bare(const char *name)
{
    static const char *const prefixes[] = {"language_model.", "model.", "language_model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const char *rest = after(name, prefixes[i]);
        name = rest ? rest : name;
    }
    return name;
}

bool drafter_has(const char *source)
{
    return after(bare(source), "mtp.") != NULL;
}

int drafter_name(const char *source, char **out, struct moeflux_err *e)
{
    static const char *const names[][2] = {{"mtp.layers.0.", "model.layers.0."},
                                           {"mtp.norm.", "model.norm."},
                                           {"mtp.", "model.mtp."},
                                           {"norm.", "model.mtp.last_norm."},
                                           {"embed_tokens.", "model.embed_tokens."},
                                           {"lm_head.", "lm_head."}};
    const char *name = bare(source);
    *out = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rest = after(name, names[i][0]);
        if (!rest)
            continue;
        size_t n = strlen(names[i][1]) + strlen(rest) + 1;
        *out = mem_new(n, 1, e);
        if (!*out)
            return ERR_MEMORY;
        snprintf(*out, n, "%s%s", names[i][1], rest);
        return 0;
    }
    return 0;
}

/* Describes one half of the columns of `whole`. */
static int take_half(const struct tensor *whole, uint32_t half, struct tensor *out, struct moeflux_err *e)
{
    char name[80];
    uint64_t rows = whole->shape[0], row = whole->bytes / rows;
    snprintf(name, sizeof name, "%s.%s", half ? DRAFTER_HIDDEN_FC : DRAFTER_EMBEDDING_FC,
             whole->name + strlen(FC));
    *out = *whole;
    out->pieces = (struct tensor_pieces){1, row, rows, {{half * (row / 2), row / 2}}};
    out->shape[1] /= 2;
    out->bytes /= 2;
    return tensor_set_name(out, name, whole->source, e);
}

static int split(struct tensor_list *l, size_t at, const char *where, struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    struct tensor halves[2];
    bool has_halves = whole.pieces.n_runs == 0 && whole.of_blocks == TENSOR_NO_BLOCKS && whole.n_dims == 2 &&
                      whole.shape[0] > 0 && whole.shape[1] % 2 == 0 &&
                      whole.bytes / whole.shape[0] % 2 == 0 && strlen(whole.name) < 40;
    if (!has_halves)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has %" PRIu64 " columns, expected two matrices' columns",
                       where, tensor_label(&whole), whole.n_dims == 2 ? whole.shape[1] : 0);
    int rc = take_half(&whole, 0, &halves[0], e);
    if (rc < 0)
        return rc;
    l->items[at] = halves[0];
    rc = take_half(&whole, 1, &halves[1], e);
    free(whole.name);
    return rc < 0 ? rc : tensor_list_add(l, &halves[1], e);
}

int drafter_split(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* halves are appended after these */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (after(l->items[i].name, FC))
            rc = split(l, i, where, e);
    return rc;
}
