/* The settings of the sampler in the model's file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "moeflux_chat.h"
#include "sample/sampler.h"
#include "sample/sampler_fields.h"

/* A key of the file and the option that it sets. */
struct setting {
    const char *key; /* without "general.sampling." */
    int field;       /* index in sampler_fields */
    /* what a negative number means: the first one -1, the second one others; NULL: they are refused */
    const int32_t *negative;
};

static int fail(const struct gguf *g, const struct setting *s, const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key general.sampling.%s: %s", g->files[0].path, s->key, what);
}

static int take_one(struct moeflux_sampler_options *o, const struct gguf *g, const struct setting *s,
                    struct moeflux_err *e)
{
    char key[64];
    double x = 0;
    struct moeflux_err why = {0};
    snprintf(key, sizeof key, "general.sampling.%s", s->key);
    const struct gguf_value *v = gguf_find(g, key);
    const struct moeflux_sampler_field *f = &sampler_fields[s->field];
    if (!v)
        return 0;
    if (!gguf_real(v, &x) || !isfinite(x))
        return fail(g, s, "expected a finite number", e);
    if (f->kind == MOEFLUX_SAMPLER_WHOLE && (x != floor(x) || fabs(x) > INT32_MAX))
        return fail(g, s, "expected a whole number", e);
    if (s->negative && x < 0)
        x = s->negative[x != -1];
    const uint32_t whole = f->kind == MOEFLUX_SAMPLER_WHOLE ? (uint32_t)x : 0;
    const float real = (float)x;
    memcpy((char *)o + f->at, f->kind == MOEFLUX_SAMPLER_WHOLE ? (const void *)&whole : &real, sizeof whole);
    return sampler_check(o, &why) < 0 ? fail(g, s, why.text, e) : 0;
}

static int take(struct moeflux_sampler_options *o, const bool *given, const struct gguf *g, size_t *failed,
                struct moeflux_err *e)
{
    static const int32_t none[] = {0, 0}, whole_context[] = {MOEFLUX_MAX_REPEAT_LAST, 0};
    static const struct setting settings[] = {
        {"temp", MOEFLUX_SAMPLER_FIELD_temperature, none},
        {"top_p", MOEFLUX_SAMPLER_FIELD_top_p, NULL},
        {"min_p", MOEFLUX_SAMPLER_FIELD_min_p, NULL},
        {"xtc_probability", MOEFLUX_SAMPLER_FIELD_xtc_probability, NULL},
        {"xtc_threshold", MOEFLUX_SAMPLER_FIELD_xtc_threshold, NULL},
        {"penalty_repeat", MOEFLUX_SAMPLER_FIELD_repeat_penalty, NULL},
        {"top_k", MOEFLUX_SAMPLER_FIELD_top_k, none},
        {"penalty_last_n", MOEFLUX_SAMPLER_FIELD_repeat_last, whole_context},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && rc == 0; i++) {
        *failed = (size_t)settings[i].field;
        if (!given || !given[*failed])
            rc = take_one(o, g, &settings[i], e);
    }
    return rc;
}

int moeflux_sampler_take_model(struct moeflux_sampler_options *o, const bool *given, const char *dir,
                               size_t *failed, struct moeflux_err *e)
{
    int null = err_need(e, "description of the sampler", o, "directory", dir, "place of the index", failed);
    if (null)
        return null;
    struct gguf g;
    struct moeflux_err why = {0};
    if (!gguf_is_file(dir) || gguf_open(&g, dir, NULL) < 0)
        return 0;
    int rc = take(o, given, &g, failed, &why);
    gguf_close(&g);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}
