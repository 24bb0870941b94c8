#include <string.h>

#include "exec/host.h"
#include "ops/sample.h"
#include "sample/weight.h"

static bool is_repeated(const struct sample_call *c, uint32_t id)
{
    bool yes = c->rule->repeat_last > 0 && host_words(c->last)[0] == id;
    for (uint32_t i = 0; i < c->n_recent && c->rule->repeat_last; i++)
        yes |= host_words(c->recent)[i] == id;
    return yes;
}

static void put(const struct sample_call *c, uint32_t id, uint32_t fault)
{
    const uint32_t result[2] = {id, fault};
    memcpy(host_at(c->result), result, sizeof result);
    *(uint32_t *)host_at(c->id) = fault == SAMPLE_OK ? id : 0;
}

int sample_ref(const void *self, const void *what, struct host *h)
{
    const struct sample *op = self;
    const struct sample_call *c = what;
    uint32_t best = 0, found = 0, nan = SAMPLE_NO_ID, inf = SAMPLE_NO_ID;
    for (uint32_t id = 0; id < op->n; id++) {
        uint32_t bits = host_words(c->logits)[id];
        if (host_words(c->blocked)[id / 32] >> id % 32 & 1)
            continue;
        if ((bits & 0x7fffffffu) > 0x7f800000u && nan == SAMPLE_NO_ID)
            nan = id;
        if (bits == 0x7f800000u && inf == SAMPLE_NO_ID)
            inf = id;
        bits = sample_flush(bits);
        if (is_repeated(c, id))
            bits = sample_penalise(bits, c->rule->penalty, c->rule->inverse_penalty);
        if (sample_key(bits) > found) {
            found = sample_key(bits);
            best = id;
        }
    }
    if (nan != SAMPLE_NO_ID)
        put(c, nan, SAMPLE_NAN);
    else if (inf != SAMPLE_NO_ID)
        put(c, inf, SAMPLE_INFINITE);
    else if (found <= sample_key(0xff800000u))
        put(c, 0, SAMPLE_NOTHING);
    else
        put(c, best, SAMPLE_OK);
    return host_error(h);
}
