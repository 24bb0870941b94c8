#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

char *names_replace_end(const char *name, size_t cut, const char *tail, struct moeflux_err *e)
{
    size_t keep = strlen(name) - cut, n = keep + strlen(tail) + 1;
    char *out = mem_new(n, 1, e);
    if (out)
        snprintf(out, n, "%.*s%s", (int)keep, name, tail);
    return out;
}

static bool of_a_later_layer(const char *rest, uint32_t n_layers)
{
    if (!str_after(rest, "layers."))
        return false;
    char *end;
    unsigned long long layer = strtoull(rest + strlen("layers."), &end, 10);
    return *end == '.' && layer >= n_layers;
}

static bool of_another_part(const char *rest)
{
    static const char *const parts[] = {
        "visual.",          "vision_tower.", "mm_projector.", "mtp.",
        "audio_tower.",     "embed_vision.", "embed_audio.",  "multi_modal_projector.",
        "vision_embedder.", "vision.",       "aligner.",      "image_"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (str_after(rest, parts[i]))
            return true;
    return false;
}

int names_canonical(const char *source, uint32_t n_layers, bool is_bare, char **out, struct moeflux_err *e)
{
    *out = NULL;
    const char *name = source;
    if (str_after(name, "language_model."))
        name += strlen("language_model.");
    if (str_after(name, "lm_head.")) {
        *out = mem_text(name, e);
        return *out ? 0 : ERR_MEMORY;
    }
    const char *prefix = str_after(name, "backbone.") ? "backbone." : "model.";
    bool is_whole = str_after(name, prefix);
    const char *rest = is_whole ? name + strlen(prefix) : name;
    if ((!is_whole && !is_bare) || of_another_part(rest))
        return 0;
    if (str_after(rest, "language_model."))
        rest += strlen("language_model.");
    if (of_a_later_layer(rest, n_layers) || str_ends_with(rest, "rotary_emb.inv_freq"))
        return 0;
    size_t n = strlen("model.") + strlen(rest) + 1;
    *out = mem_new(n, 1, e);
    if (!*out)
        return ERR_MEMORY;
    snprintf(*out, n, "model.%s", rest);
    return 0;
}

int names_rename(char **name, const char *const (*renamed)[2], struct moeflux_err *e)
{
    for (; renamed && (*renamed)[0]; renamed++) {
        const char *part = strstr(*name, (*renamed)[0]);
        if (!part)
            continue;
        size_t n = strlen(*name) - strlen((*renamed)[0]) + strlen((*renamed)[1]) + 1;
        char *out = mem_new(n, 1, e);
        if (!out)
            return ERR_MEMORY;
        snprintf(out, n, "%.*s%s%s", (int)(part - *name), *name, (*renamed)[1], part + strlen((*renamed)[0]));
        free(*name);
        *name = out;
    }
    return 0;
}

const char *const names_of_mixtral[][2] = {{".block_sparse_moe.", ".mlp."},
                                           {".w1.", ".gate_proj."},
                                           {".w2.", ".down_proj."},
                                           {".w3.", ".up_proj."},
                                           {0}};
