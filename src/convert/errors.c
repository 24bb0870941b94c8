#include "convert/errors.h"

#include <stdio.h>
#include <string.h>

#include "model/family.h"

void convert_error_add(struct convert_error *to, const struct convert_error *x)
{
    to->weights += x->weights;
    to->bits += x->bits;
    to->squares += x->squares;
    to->minmax += x->minmax;
    to->stored += x->stored;
}

static bool is_below_mlp(const char *name, const char *part)
{
    char text[64];
    snprintf(text, sizeof text, ".mlp.%s.", part ? part : "");
    return part && strstr(name, text);
}

enum convert_class convert_class_of(const char *name, const struct family *f)
{
    if (strstr(name, "embed_tokens"))
        return CONVERT_CLASS_EMBEDDING;
    if (strstr(name, "lm_head"))
        return CONVERT_CLASS_HEAD;
    if (strstr(name, ".linear_attn."))
        return CONVERT_CLASS_DELTA;
    if (strstr(name, ".self_attn."))
        return CONVERT_CLASS_ATTENTION;
    if (is_below_mlp(name, "gate") || is_below_mlp(name, f->shared_gate))
        return CONVERT_CLASS_ROUTER;
    return is_below_mlp(name, f->shared) ? CONVERT_CLASS_SHARED : CONVERT_CLASS_DENSE;
}

const char *convert_class_name(enum convert_class c)
{
    static const char *const names[] = {
        [CONVERT_CLASS_EMBEDDING] = "embedding", [CONVERT_CLASS_ATTENTION] = "attention",
        [CONVERT_CLASS_DELTA] = "delta net",     [CONVERT_CLASS_ROUTER] = "router",
        [CONVERT_CLASS_EXPERTS] = "experts",     [CONVERT_CLASS_SHARED] = "shared expert",
        [CONVERT_CLASS_DENSE] = "feed-forward",  [CONVERT_CLASS_HEAD] = "lm_head",
    };
    return names[c];
}
