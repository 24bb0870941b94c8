/* What the makers of a configuration share. */
#include "model/gguf/making.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/gguf.h"

const char *making_path_of(const struct making *m)
{
    return m->g->files[0].path;
}

const struct gguf_value *making_find(const struct making *m, const char *key)
{
    char full[MAKING_KEY];
    snprintf(full, sizeof full, "%s.%s", m->arch, key);
    return gguf_find(m->g, full);
}

void making_fail_key(struct making *m, const char *key, const char *what)
{
    m->rc = err_set(m->e, ERR_FORMAT, "%s: key %s.%s: %s", making_path_of(m), m->arch, key, what);
}

void making_put(struct making *m, const char *ours, json_t *value)
{
    if (json_object_set_new(m->out, ours, value) < 0 && m->rc == 0)
        m->rc = err_set(m->e, ERR_MEMORY, "out of memory for config.json");
}

/* Gives a whole number; the largest of a list, which some architectures have with an item per layer. */
static bool largest(struct making *m, const struct gguf_value *v, uint64_t *out)
{
    uint32_t *list;
    if (!v->is_list)
        return gguf_whole(v, out);
    if (gguf_u32_list(m->g, v, &list, NULL) < 0)
        return false;
    *out = 0;
    for (uint64_t i = 0; i < v->n; i++)
        *out = list[i] > *out ? list[i] : *out;
    free(list);
    return true;
}

uint64_t making_whole(struct making *m, const char *theirs, int64_t fallback)
{
    const struct gguf_value *v = making_find(m, theirs);
    uint64_t n = fallback < 0 ? 0 : (uint64_t)fallback;
    if (m->rc < 0)
        return 0;
    if (!v && fallback < 0)
        making_fail_key(m, theirs, "is missing");
    else if (v && (!largest(m, v, &n) || n > INT32_MAX))
        making_fail_key(m, theirs, "expected a whole number");
    return m->rc < 0 ? 0 : n;
}

bool making_has(const struct making *m, const char *theirs)
{
    return making_find(m, theirs) != NULL;
}

bool making_has_tensor(const struct making *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

void making_put_whole(struct making *m, const char *ours, uint64_t n)
{
    making_put(m, ours, json_integer((json_int_t)n));
}

/* Puts a number, multiplied; JSON has no NaN or infinity. */
void making_put_real(struct making *m, const char *ours, const char *theirs, double times, bool may)
{
    const struct gguf_value *v = making_find(m, theirs);
    double x;
    if (m->rc < 0 || (!v && may))
        return;
    if (!v)
        making_fail_key(m, theirs, "is missing");
    else if (!gguf_real(v, &x) || !isfinite(times * x))
        making_fail_key(m, theirs, "expected a finite number");
    else
        making_put(m, ours, json_real(times * x));
}

static void put_pair(struct making *m, const struct making_pair *p)
{
    bool is_real = p->how == REAL || p->how == REAL_MAY, may = p->how != WHOLE && p->how != REAL;
    if (m->rc < 0 || (may && !making_has(m, p->theirs)))
        return;
    if (is_real)
        making_put_real(m, p->ours, p->theirs, 1, may);
    else if (p->how == FLAG_MAY)
        making_put(m, p->ours, json_boolean(making_whole(m, p->theirs, 0) != 0));
    else
        making_put_whole(m, p->ours, making_whole(m, p->theirs, -1));
}

void making_put_pairs(struct making *m, const struct making_pair *pairs)
{
    for (; pairs->ours; pairs++)
        put_pair(m, pairs);
}

void making_put_scoring(struct making *m)
{
    making_put(m, "scoring_func",
               json_string(making_whole(m, "expert_gating_func", 1) == 2 ? "sigmoid" : "softmax"));
    making_put(m, "norm_topk_prob", json_boolean(making_whole(m, "expert_weights_norm", 0) != 0));
}

void making_put_reals(struct making *m, const char *ours, const char *theirs)
{
    const struct gguf_value *v = making_find(m, theirs);
    double *list;
    if (m->rc < 0 || !v || (m->rc = gguf_real_list(m->g, v, &list, m->e)) < 0)
        return;
    json_t *items = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(items, json_real(list[i]));
    making_put(m, ours, items);
    free(list);
}

void making_put_list(struct making *m, const char *ours, const char *theirs, uint64_t plus)
{
    const struct gguf_value *v = making_find(m, theirs);
    uint64_t *list = NULL;
    if (m->rc == 0 && (!v || !v->is_list))
        making_fail_key(m, theirs, v ? "expected a list of numbers" : "is missing");
    if (m->rc < 0 || (m->rc = gguf_u64_list(m->g, v, &list, m->e)) < 0)
        return;
    json_t *items = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(items, json_integer((json_int_t)list[i] + (json_int_t)plus));
    making_put(m, ours, items);
    free(list);
}
