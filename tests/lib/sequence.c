#include "sequence.h"

#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sequence sequence_open(const char *dir, const char *device, uint32_t chunk, uint32_t n_slots,
                              uint32_t context)
{
    return sequence_open_kv(dir, device, MOEFLUX_KV_TYPE_AUTO, chunk, n_slots, context);
}

struct sequence sequence_open_kv(const char *dir, const char *device, enum moeflux_kv_type type,
                                 uint32_t chunk, uint32_t n_slots, uint32_t context)
{
    struct sequence q = {0};
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    /* float32, whatever the device is fast at: what backends compute is compared. */
    struct moeflux_options o = {.dir = dir,
                                .chunk = chunk,
                                .context = context,
                                .device = device ? device : getenv("MOEFLUX_DEVICE"),
                                .kv_type = type,
                                .prompt_type = MOEFLUX_PROMPT_TYPE_F32};
    check_ok(device_make_plan(&o, &p, &e), &e);
    if (n_slots) {
        o.gpu_memory_bytes =
            p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes + n_slots * p.slot_bytes;
        /* Room for the experts of a token. */
        o.memory_bytes = p.is_unified ? 0 : p.cpu_scratch_bytes + 4 * p.slot_bytes;
    }
    check_ok(device_open_model(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, context, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    return q;
}

void sequence_close(struct sequence *q)
{
    moeflux_session_free(q->s);
    moeflux_model_close(q->m);
}

void sequence_ids(const struct sequence *q, uint32_t kind, int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919u + i * i / 7 + kind * 31 + 13) % q->vocab);
}

void sequence_eval(struct sequence *q, const int32_t *ids, uint32_t n, float *logits)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_eval(q->s, ids, n, &(struct moeflux_outputs){.logits = logits}, &e), &e);
}

void sequence_fresh(struct sequence *q, const int32_t *ids, uint32_t n, const int32_t *more, uint32_t n_more,
                    float *logits)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(q->s, &e), &e);
    if (n)
        sequence_eval(q, ids, n, NULL);
    sequence_eval(q, more, n_more, logits);
}

float sequence_distance(const struct sequence *q, const float *a, const float *b)
{
    float most = 0, largest = 0;
    for (uint32_t i = 0; i < q->vocab; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        most = fmaxf(most, fabsf(a[i] - b[i]));
        largest = fmaxf(largest, fabsf(b[i]));
    }
    assert_true(largest > 0);
    return most / largest;
}

float sequence_tolerance(const struct sequence *q)
{
    return moeflux_model_get_info(q->m).f16_products ? 2e-2f : 1e-4f;
}

void sequence_refused(int rc, const struct moeflux_err *e, int code, const char *text)
{
    if (rc != code || !strstr(e->text, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e->text, code, text);
}
