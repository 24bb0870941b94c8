#include "model/gguf/open.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "model/config_read.h"
#include "model/drafter.h"
#include "model/expert_places.h"
#include "model/expert_tensors.h"
#include "model/family.h"
#include "model/fused.h"
#include "model/gguf/config.h"
#include "model/gguf/drafter_file.h"
#include "model/gguf/names.h"
#include "model/gguf/tensors.h"
#include "model/model.h"
#include "model/model_check.h"
#include "model/tensor.h"

static int read_config(struct model_dir *m, const struct gguf *g, struct moeflux_err *e)
{
    json_t *config = NULL;
    int rc = gguf_config_make(g, &config, e);
    if (rc == 0)
        rc = config_read(&m->config, config, m->path, e);
    if (rc == 0 && m->is_drafter)
        rc = drafter_config(&m->config, m->path, e);
    json_decref(config);
    /* Value heads stay where llama.cpp's converter has put them. */
    for (uint32_t i = 0; rc == 0 && i < m->config.n_parts; i++)
        if (m->config.parts[i].kind == PART_DELTA_NET)
            m->config.parts[i].delta.tiled = gguf_config_tiles_heads(&m->config);
    return rc;
}

/* Takes the open files over from `g`. */
static void take_files(struct model_dir *m, struct gguf *g)
{
    m->files = g->files;
    m->n_files = g->n_files;
    g->files = NULL;
    g->n_files = 0;
}

static int read_tensors(struct model_dir *m, const struct gguf *g, struct moeflux_err *e)
{
    const struct gguf_tensor **from = mem_new(g->n_tensors, sizeof *from, e);
    struct tensor_list l = {0};
    int rc = from ? gguf_tensors_list(g, &m->config, &l, from, &m->n_left_out, e) : ERR_MEMORY;
    if (rc == 0)
        rc = gguf_tensors_split(&l, m->path, e);
    if (rc == 0 && m->is_drafter)
        rc = drafter_split(&l, m->path, e);
    if (rc == 0)
        rc = fused_split(&l, m->config.family->fused, &m->config, 0, m->path, e);
    if (rc == 0)
        rc = tensor_list_sort(&l, m->path, e);
    free(from);
    if (rc < 0) {
        tensor_list_free(&l);
        return rc;
    }
    m->tensors = l.items;
    m->n_tensors = l.n;
    return 0;
}

/* Checks that the file has the layer of multi-token prediction. */
static int check_drafter(const struct model_dir *m, struct moeflux_err *e)
{
    if (m->has_drafter)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: no tensors blk.%u.nextn.eh_proj, nextn.enorm, nextn.hnorm, %s: it has no layer of "
                   "multi-token prediction",
                   m->drafter_file ? m->drafter_file : m->path, m->config.drafts_as,
                   gguf_names_drafter_norm(&m->config));
}

int gguf_open_model(struct model_dir *m, struct moeflux_err *e)
{
    struct gguf g;
    m->is_gguf = true;
    int rc = gguf_open(&g, m->path, e);
    if (rc < 0)
        return rc;
    rc = read_config(m, &g, e);
    if (rc == 0 && m->drafter_file)
        rc = drafter_file_add(&g, &m->config, m->drafter_file, e);
    if (rc == 0)
        m->has_drafter = gguf_tensors_have_drafter(&g, &m->config);
    if (rc == 0 && m->is_drafter)
        rc = check_drafter(m, e);
    if (rc == 0)
        rc = read_tensors(m, &g, e);
    bool has_vocab = rc == 0 && gguf_config_has_tokenizer(&g);
    take_files(m, &g);
    gguf_close(&g);
    if (rc == 0)
        rc = model_check_tensors(m, e);
    if (rc == 0)
        rc = expert_places_from_tensors(m, e);
    if (rc == 0 && has_vocab && !(m->tokenizer_path = mem_text(m->path, e)))
        rc = ERR_MEMORY;
    return rc;
}
