#include "model/gguf/drafter_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/config.h"

enum { NAME = 96 };

/* Writes the name that a tensor has in a model's file. The layer's last mix of streams has the names of a
 * model's; some files call its norm that of the head. Returns whether it is one of the layer's. */
static bool name_in_model(const struct config *c, const char *name, char out[NAME])
{
    char start[32];
    const char *mix = str_after(name, "output_hc_");
    snprintf(start, sizeof start, "blk.%u.", c->drafts_as);
    const char *rest = str_after(name, start);
    if (mix)
        snprintf(out, NAME, "%snextn.hc_head_%.40s", start, mix);
    else if (rest && c->streams.rank && !strcmp(rest, "nextn.shared_head_norm.weight"))
        snprintf(out, NAME, "%snextn.hc_head_norm.weight", start);
    else
        snprintf(out, NAME, "%.*s", NAME - 1, name);
    return mix || rest;
}

/* Renames the layer's tensors and removes the others. */
static int keep_layer(struct gguf *g, const struct config *c, struct moeflux_err *e)
{
    size_t n = g->n_tensors;
    g->n_tensors = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        char name[NAME];
        struct gguf_tensor t = g->tensors[i];
        bool is_kept = rc == 0 && name_in_model(c, t.name, name);
        free(t.name);
        t.name = is_kept ? mem_text(name, e) : NULL;
        if (t.name)
            g->tensors[g->n_tensors++] = t;
        else if (is_kept)
            rc = ERR_MEMORY;
    }
    return rc;
}

/* Removes what a model's file has of the layer. */
static void drop_layer(struct gguf *g, const struct config *c)
{
    char start[32];
    size_t n = g->n_tensors;
    snprintf(start, sizeof start, "blk.%u.", c->drafts_as);
    g->n_tensors = 0;
    for (size_t i = 0; i < n; i++)
        if (str_after(g->tensors[i].name, start))
            free(g->tensors[i].name);
        else
            g->tensors[g->n_tensors++] = g->tensors[i];
}

int drafter_file_add(struct gguf *g, const struct config *c, const char *path, struct moeflux_err *e)
{
    struct gguf more;
    int rc = gguf_open(&more, path, e);
    if (rc < 0)
        return rc;
    rc = keep_layer(&more, c, e);
    drop_layer(g, c);
    if (rc == 0)
        rc = gguf_join(g, &more, e);
    gguf_close(&more);
    return rc;
}
