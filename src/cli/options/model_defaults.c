#include "cli/options/model_defaults.h"

#include "base/err.h"
#include "base/gguf.h"
#include "cli/options/options.h"
#include "sample/sampler.h"

static void take_real(const struct gguf *g, const char *key, bool is_given, float *to)
{
    double x;
    if (!is_given && gguf_real(gguf_find(g, key), &x))
        *to = (float)x;
}

/* Takes a whole number; negative ones are `negative` here. */
static void take_whole(const struct gguf *g, const char *key, bool is_given, int64_t negative, int64_t *to)
{
    double x;
    if (!is_given && gguf_real(gguf_find(g, key), &x))
        *to = !(x >= 0) ? negative : x > INT32_MAX ? INT32_MAX : (int64_t)x;
}

static int take(struct options *o, const struct gguf *g, struct moeflux_err *e)
{
    const struct options_given *given = &o->given;
    struct moeflux_err why = {0};
    take_real(g, "general.sampling.temp", given->temp, &o->temp);
    take_real(g, "general.sampling.top_p", given->top_p, &o->top_p);
    take_real(g, "general.sampling.min_p", given->min_p, &o->min_p);
    take_real(g, "general.sampling.penalty_repeat", given->repeat_penalty, &o->repeat_penalty);
    take_whole(g, "general.sampling.top_k", given->top_k, 0, &o->top_k);
    take_whole(g, "general.sampling.penalty_last_n", given->repeat_last, o->repeat_last, &o->repeat_last);
    if (!given->temp && o->temp < 0)
        o->temp = 0;
    const struct sampler_options s = options_sampling(o, 0);
    return sampler_check(&s, &why) < 0
               ? err_set(e, ERR_FORMAT, "%s: keys general.sampling.*: %s", g->files[0].path, why.text)
               : 0;
}

int model_defaults_take(struct options *o, struct moeflux_err *e)
{
    struct gguf g;
    bool samples = o->verb == VERB_RUN || o->verb == VERB_BATCH || o->verb == VERB_SERVE;
    if (!samples || !o->model || !gguf_is_file(o->model) || gguf_open(&g, o->model, NULL) < 0)
        return 0;
    int rc = take(o, &g, e);
    gguf_close(&g);
    return rc;
}
