/* making.h - what the makers of a configuration from a GGUF file's metadata share (config.h): reading keys of
 * the file, putting keys of config.json. Private to config.c and config_windows.c. */
#ifndef MOEFLUX_MODEL_GGUF_MAKING_H
#define MOEFLUX_MODEL_GGUF_MAKING_H

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"

enum { MAX_NAME = 64, MAX_KEY = 128, LIST_TEXT = 256 };

/* The configuration being made; the first failure sticks. */
struct making {
    const struct gguf *g;
    const char *arch; /* prefix of the keys */
    json_t *out;
    int rc;
    struct moeflux_err *e;
};

static const char *path_of(const struct making *m)
{
    return m->g->files[0].path;
}

static const struct gguf_value *find(const struct making *m, const char *key)
{
    char full[MAX_KEY];
    snprintf(full, sizeof full, "%s.%s", m->arch, key);
    return gguf_find(m->g, full);
}

static inline void fail_key(struct making *m, const char *key, const char *what)
{
    m->rc = err_set(m->e, ERR_FORMAT, "%s: key %s.%s: %s", path_of(m), m->arch, key, what);
}

static inline void put(struct making *m, const char *ours, json_t *value)
{
    if (json_object_set_new(m->out, ours, value) < 0 && m->rc == 0)
        m->rc = err_set(m->e, ERR_MEMORY, "out of memory for config.json");
}

/* Gives a whole number; the largest of a list, which some architectures have with an item per layer. */
static inline bool largest(struct making *m, const struct gguf_value *v, uint64_t *out)
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

/* Returns a whole number; `fallback` if the key is missing, which is an error if `fallback` is negative. */
static inline uint64_t whole(struct making *m, const char *theirs, int64_t fallback)
{
    const struct gguf_value *v = find(m, theirs);
    uint64_t n = fallback < 0 ? 0 : (uint64_t)fallback;
    if (m->rc < 0)
        return 0;
    if (!v && fallback < 0)
        fail_key(m, theirs, "is missing");
    else if (v && (!largest(m, v, &n) || n > INT32_MAX))
        fail_key(m, theirs, "expected a whole number");
    return m->rc < 0 ? 0 : n;
}

static inline bool has(const struct making *m, const char *theirs)
{
    return find(m, theirs) != NULL;
}

static inline bool has_tensor(const struct making *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

static inline void put_whole(struct making *m, const char *ours, uint64_t n)
{
    put(m, ours, json_integer((json_int_t)n));
}

/* How a key of config.json follows from one of the file; MAY: it may be missing. */
enum how { WHOLE, WHOLE_MAY, REAL, REAL_MAY, FLAG_MAY };
struct pair {
    const char *ours, *theirs;
    enum how how;
};

/* Puts a number, multiplied; JSON has no NaN or infinity. */
static inline void put_real(struct making *m, const char *ours, const char *theirs, double times, bool may)
{
    const struct gguf_value *v = find(m, theirs);
    double x;
    if (m->rc < 0 || (!v && may))
        return;
    if (!v)
        fail_key(m, theirs, "is missing");
    else if (!gguf_real(v, &x) || !isfinite(times * x))
        fail_key(m, theirs, "expected a finite number");
    else
        put(m, ours, json_real(times * x));
}

static inline void put_pair(struct making *m, const struct pair *p)
{
    bool is_real = p->how == REAL || p->how == REAL_MAY, may = p->how != WHOLE && p->how != REAL;
    if (m->rc < 0 || (may && !has(m, p->theirs)))
        return;
    if (is_real)
        put_real(m, p->ours, p->theirs, 1, may);
    else if (p->how == FLAG_MAY)
        put(m, p->ours, json_boolean(whole(m, p->theirs, 0) != 0));
    else
        put_whole(m, p->ours, whole(m, p->theirs, -1));
}

static inline void put_pairs(struct making *m, const struct pair *pairs)
{
    for (; pairs->ours; pairs++)
        put_pair(m, pairs);
}

/* Puts the router's scores: sigmoid (2), else softmax, also if the key is missing. */
static inline void put_scoring(struct making *m)
{
    put(m, "scoring_func", json_string(whole(m, "expert_gating_func", 1) == 2 ? "sigmoid" : "softmax"));
    put(m, "norm_topk_prob", json_boolean(whole(m, "expert_weights_norm", 0) != 0));
}

/* Puts a list of numbers with one for each layer, if it is there. */
static inline void put_reals(struct making *m, const char *ours, const char *theirs)
{
    const struct gguf_value *v = find(m, theirs);
    double *list;
    if (m->rc < 0 || !v || (m->rc = gguf_real_list(m->g, v, &list, m->e)) < 0)
        return;
    json_t *items = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(items, json_real(list[i]));
    put(m, ours, items);
    free(list);
}

/* Families in config_windows.c. */
void config_windows_put_gemma4(struct making *m);
void config_windows_put_minimax_m3(struct making *m);
void config_windows_put_step35(struct making *m);
void config_windows_put_mimo2(struct making *m);

#endif
