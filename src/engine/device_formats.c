#include "engine/device_formats.h"

#include <stdio.h>

#include "base/err.h"
#include "base/format.h"
#include "exec/exec.h"
#include "model/model_dir.h"
#include "model/schema.h"

static int check(const struct model_dir *m, const struct exec_caps *caps, const char *what, uint32_t format,
                 struct moeflux_err *e)
{
    if (format <= FORMAT_F32)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: %s is stored as %s, which %s does not compute; --device cpu does",
                   m->path, what, format_of(format)->name, caps->name);
}

static int check_dense(const struct model_dir *m, const struct exec_caps *caps, struct moeflux_err *e)
{
    struct schema s;
    int rc = schema_build(&s, &m->config, e);
    for (size_t i = 0; rc == 0 && i < s.n; i++) {
        const struct schema_item *it = &s.items[i];
        struct matrix w = {0};
        if (!it->rows)
            continue;
        rc = model_dir_matrix(m, it->name, it->rows, it->cols, &w, e);
        if (rc == 0)
            rc = check(m, caps, w.weight->name, w.format, e);
    }
    schema_free(&s);
    return rc;
}

static int check_experts(const struct model_dir *m, const struct exec_caps *caps, uint32_t layer,
                         struct moeflux_err *e)
{
    const struct expert_formats *f = &m->experts[layer].formats;
    const struct {
        const char *name;
        uint32_t format;
    } parts[] = {{"gate_proj", f->gate}, {"up_proj", f->up}, {"down_proj", f->down}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s of layer %u's experts", parts[i].name, layer);
        rc = check(m, caps, what, parts[i].format, e);
    }
    return rc;
}

int device_formats_check(const struct model_dir *m, const struct exec_caps *caps, struct moeflux_err *e)
{
    if (caps->is_host)
        return 0;
    int rc = check_dense(m, caps, e);
    for (uint32_t i = 0; rc == 0 && i < m->config.n_layers; i++)
        if (config_has_experts(&m->config, i))
            rc = check_experts(m, caps, i, e);
    return rc;
}
