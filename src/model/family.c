#include "model/family.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

static const struct family *const families[] = {
    &family_qwen35moe, &family_qwen3moe,   &family_deepseek3,  &family_glm4moe,     &family_qwen3next,
    &family_kimik2,    &family_minimaxm2,  &family_gptoss,     &family_glm4moelite, &family_qwen4exp,
    &family_gemma4,    &family_glmdsa,     &family_deepseek32, &family_kimilinear,  &family_bailinghybrid,
    &family_deepseek4, &family_deepseek41, &family_glm5next,   &family_minimaxm3,   &family_step35,
    &family_mimov2,    &family_nemotronh,  &family_kimik3,
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const struct family *family_find(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (const char *const *t = families[i]->types; *t; t++)
            if (!strcmp(*t, model_type))
                return families[i];
    return NULL;
}

static bool has_one(const struct json_view *v, const char *const *keys)
{
    while (keys && *keys && !json_view_get(v, *keys))
        keys++;
    return keys && *keys;
}

const struct family *family_of_keys(const struct json_view *v)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (families[i]->own_key && json_view_get(v, families[i]->own_key) &&
            !has_one(v, families[i]->not_keys))
            return families[i];
    return NULL;
}

bool family_is_gate(const struct family *f, const char *base, uint32_t streams_rank)
{
    char shared_gate[64];
    snprintf(shared_gate, sizeof shared_gate, ".mlp.%s", f->shared_gate ? f->shared_gate : "?");
    return str_ends_with(base, ".mlp.gate") || str_ends_with(base, shared_gate) ||
           (!streams_rank && str_ends_with(base, ".fn")) || str_ends_with(base, ".index_kpool_compress_gate");
}

/* Returns whether a type is the name before it in the family's list and "_text": a part of such a model. */
static bool is_part(const char *const *types, const char *const *t)
{
    const char *rest = t > types ? str_after(*t, t[-1]) : NULL;
    return rest && strcmp(rest, "_text") == 0;
}

const char *family_list(char out[FAMILY_LIST_TEXT])
{
    const char *const *last = families[N_FAMILIES - 1]->types;
    size_t at = 0;
    while (last[1])
        last++;
    out[0] = '\0';
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (const char *const *t = families[i]->types; *t && at < FAMILY_LIST_TEXT; t++) {
            const char *between = at == 0 ? "" : t == last ? " or " : ", ";
            if (!is_part(families[i]->types, t))
                at += (size_t)snprintf(out + at, FAMILY_LIST_TEXT - at, "%s%s", between, *t);
        }
    return out;
}
