/* A model whose layers are shared out to several devices: the results are those of one device.
 *
 * suites: nightly vulkan cpu drivers asan-nightly */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine/plan/devices.h"
#include "engine/session.h"
#include "exec/backend.h"
#include "sequence.h"
#include "tmp_tree.h"

enum { CONTEXT = 96, CHUNK = 16, N_PROMPT = 37, N_TOKENS = 5 };
static const char TINY[] = "tests/models/tiny", ODD[] = "tests/models/qwen-odd/mlx",
                  DEEPSEEK[] = "tests/models/deepseek-odd/mlx", QWEN3[] = "tests/models/qwen3-odd/mlx",
                  GLM5[] = "tests/models/families/glm5-odd", V41[] = "tests/models/families/v41-odd";

/* How a model is opened. */
struct setup {
    const char *dir, *device;
    float shares[4]; /* none: by total memory */
    bool streams;    /* few experts have slots */
    bool staged;     /* device memory counts as apart from the host's */
    enum moeflux_prefetch prefetch;
    uint32_t n_cpu_layers; /* moeflux_options.n_cpu_layers */
    bool brief;            /* the prompt is evaluated once */
    bool profile;
};

static struct moeflux_options options_of(const struct setup *u)
{
    struct moeflux_options o = {.dir = u->dir,
                                .device = u->device,
                                .prefetch = u->prefetch,
                                .prompt_type = MOEFLUX_PROMPT_TYPE_F32,
                                .context = CONTEXT,
                                .chunk = CHUNK,
                                .n_cpu_layers = u->n_cpu_layers,
                                .profile = u->profile};
    memcpy(o.tensor_split, u->shares, sizeof u->shares);
    while (o.n_tensor_split < 4 && u->shares[o.n_tensor_split] > 0)
        o.n_tensor_split++;
    return o;
}

/* Room for the experts of two tokens and one layer on each device. */
static void let_stream(const struct setup *u, struct moeflux_options *o)
{
    struct moeflux_plan p;
    struct moeflux_needs n;
    struct moeflux_err e = {0};
    check_ok(device_plan_staged(o, u->staged, &p, &e), &e);
    check_ok(moeflux_get_needs(u->dir, &n, &e), &e);
    uint64_t room = 2 * n.top_k * p.slot_bytes;
    o->memory_bytes = p.n_devices * room + p.cpu_scratch_bytes;
    for (uint32_t i = 0; u->staged && i < p.n_devices; i++) {
        const struct moeflux_plan_device *d = &p.devices[i];
        o->gpu_memory_each[i] =
            d->weights_bytes + d->state_bytes + d->activation_bytes + d->driver_bytes + room;
    }
    o->n_gpu_memory = u->staged ? p.n_devices : 0;
}

static struct sequence open_setup(const struct setup *u)
{
    struct sequence q = {0};
    struct moeflux_err e = {0};
    struct moeflux_options o = options_of(u);
    if (u->streams)
        let_stream(u, &o);
    check_ok(device_open_staged(&q.m, &o, u->staged, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    assert_true(moeflux_model_get_info(q.m).experts_resident == !u->streams);
    return q;
}

/* What a run hands out, byte by byte. */
struct record {
    uint8_t *bytes;
    size_t n;
};

static void add(struct record *r, const void *bytes, size_t n)
{
    r->bytes = realloc(r->bytes, r->n + n);
    assert_non_null(r->bytes);
    memcpy(r->bytes + r->n, bytes, n);
    r->n += n;
}

struct hearing {
    struct record *to;
    uint32_t vocab, hidden;
};

static int hear_logits(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    const struct hearing *h = ctx;
    (void)e;
    add(h->to, &pos, sizeof pos);
    add(h->to, row, h->vocab * sizeof *row);
    return 0;
}

static int hear_hidden(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows,
                       struct moeflux_err *e)
{
    const struct hearing *h = ctx;
    (void)e;
    add(h->to, &layer, sizeof layer);
    add(h->to, &pos, sizeof pos);
    add(h->to, rows, (size_t)n * h->hidden * sizeof *rows);
    return 0;
}

/* Single tokens, whose logits alone are asked for. */
static void decode(struct sequence *q, struct record *to)
{
    int32_t ids[N_TOKENS];
    float *row = malloc(q->vocab * sizeof *row);
    sequence_ids(q, 3, ids, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        sequence_eval(q, &ids[i], 1, row);
        add(to, row, q->vocab * sizeof *row);
    }
    free(row);
}

/* A prompt of several chunks with every output, and tokens after it. */
static void run(struct sequence *q, bool brief, struct record *to)
{
    struct moeflux_err e = {0};
    int32_t ids[N_PROMPT];
    struct hearing h = {to, q->vocab, moeflux_model_get_info(q->m).hidden};
    sequence_ids(q, 1, ids, N_PROMPT);
    /* Chunks that nothing is asked of, and logits of each token: several devices have them at once. */
    sequence_eval(q, ids, N_PROMPT, NULL);
    decode(q, to);
    if (brief)
        return;
    check_ok(moeflux_session_clear(q->s, &e), &e);
    check_ok(moeflux_session_eval(q->s, ids, N_PROMPT,
                                  &(struct moeflux_outputs){.each_logits = hear_logits, .ctx = &h}, &e),
             &e);
    /* Hidden states come chunk by chunk. */
    check_ok(moeflux_session_eval(
                 q->s, ids, N_PROMPT,
                 &(struct moeflux_outputs){.each_logits = hear_logits, .hidden = hear_hidden, .ctx = &h}, &e),
             &e);
    decode(q, to);
}

static struct record record_of(const struct setup *u)
{
    struct record r = {0};
    struct sequence q = open_setup(u);
    run(&q, u->brief, &r);
    sequence_close(&q);
    return r;
}

static void check_same(const struct record *a, const struct record *b, const struct setup *u)
{
    if (a->n != b->n || memcmp(a->bytes, b->bytes, a->n) != 0)
        fail_msg("%s on %s: other results than on one device", u->dir, u->device);
}

/* The first setup's results are those of all. */
static void check_same_logits(const struct setup *u, size_t n)
{
    struct record first = record_of(&u[0]);
    for (size_t i = 1; i < n; i++) {
        struct record r = record_of(&u[i]);
        check_same(&first, &r, &u[i]);
        free(r.bytes);
    }
    free(first.bytes);
}

#define CHECK_SAME_LOGITS(...)                                                                               \
    do {                                                                                                     \
        const struct setup setups_[] = {__VA_ARGS__};                                                        \
        check_same_logits(setups_, sizeof setups_ / sizeof *setups_);                                        \
    } while (0)

static void any_split_computes_what_one_device_does(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS({.dir = ODD, .device = "cpu"}, {.dir = ODD, .device = "cpu,cpu"},
                      {.dir = ODD, .device = "cpu,cpu", .shares = {5, 1}},
                      {.dir = ODD, .device = "cpu,cpu,cpu", .shares = {1, 3, 2}});
    CHECK_SAME_LOGITS({.dir = TINY, .device = "cpu"}, {.dir = TINY, .device = "cpu,cpu", .shares = {1, 7}});
    CHECK_SAME_LOGITS({.dir = DEEPSEEK, .device = "cpu"}, {.dir = DEEPSEEK, .device = "cpu,cpu"},
                      {.dir = DEEPSEEK, .device = "cpu,cpu", .shares = {1, 100}});
    CHECK_SAME_LOGITS({.dir = QWEN3, .device = "reference"}, {.dir = QWEN3, .device = "reference,reference"});
}

/* The second of three layers uses the first one's choice. */
static void a_device_begins_with_a_layer_that_has_an_indexer(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS({.dir = GLM5, .device = "cpu"}, {.dir = GLM5, .device = "cpu,cpu"},
                      {.dir = GLM5, .device = "cpu,cpu", .shares = {1, 100}});
    const struct setup two = {.dir = GLM5, .device = "cpu,cpu", .shares = {1, 2}},
                       three = {.dir = GLM5, .device = "cpu,cpu,cpu"};
    struct moeflux_stats s;
    struct moeflux_err e = {0};
    struct sequence q = open_setup(&two);
    moeflux_model_get_stats(q.m, &s);
    assert_true(s.devices[0].end_layer == 2 && s.devices[1].end_layer == 3);
    sequence_close(&q);
    const struct moeflux_options o = options_of(&three);
    sequence_refused(device_open_staged(&q.m, &o, false, &e), &e, ERR_USAGE,
                     "`device` names 3 devices, the model has 2 groups of layers");
}

/* Layers 1 and 2 share rows, 3 and 4 rows and candidates. The weights of lagged mixes go along. */
static void layers_that_share_compressed_rows_stay_together(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS({.dir = V41, .device = "cpu"}, {.dir = V41, .device = "cpu,cpu"},
                      {.dir = V41, .device = "cpu,cpu,cpu", .streams = true});
    const struct setup two = {.dir = V41, .device = "cpu,cpu", .shares = {2, 3}},
                       four = {.dir = V41, .device = "cpu,cpu,cpu,cpu"};
    struct moeflux_stats s;
    struct moeflux_err e = {0};
    struct sequence q = open_setup(&two);
    moeflux_model_get_stats(q.m, &s);
    assert_true(s.devices[0].end_layer == 3 && s.devices[1].end_layer == 5);
    sequence_close(&q);
    const struct moeflux_options o = options_of(&four);
    sequence_refused(device_open_staged(&q.m, &o, false, &e), &e, ERR_USAGE,
                     "`device` names 4 devices, the model has 3 groups of layers");
}

static void streamed_experts_change_nothing(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS(
        {.dir = ODD, .device = "cpu"}, {.dir = ODD, .device = "cpu,cpu", .streams = true},
        {.dir = ODD,
         .device = "cpu,cpu",
         .shares = {5, 1},
         .streams = true,
         .prefetch = MOEFLUX_PREFETCH_NONE},
        {.dir = ODD, .device = "cpu,cpu,cpu", .streams = true, .prefetch = MOEFLUX_PREFETCH_BOTH});
    CHECK_SAME_LOGITS({.dir = DEEPSEEK, .device = "cpu"},
                      {.dir = DEEPSEEK, .device = "cpu,cpu", .streams = true});
}

static void a_device_named_twice_computes_what_it_does_alone(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS({.dir = TINY, .device = "0"}, {.dir = TINY, .device = "0,0", .shares = {3, 1}},
                      {.dir = TINY, .device = "0,0", .streams = true, .staged = true});
}

/* The logits after a prompt of several chunks; whether a stage wrote its host copy of the hidden states. */
static bool crosses_by_the_host(struct sequence *q, float *row)
{
    int32_t ids[N_PROMPT];
    bool is_written = false;
    sequence_ids(q, 1, ids, N_PROMPT);
    for (uint32_t i = 0; i < q->m->n_stages; i++)
        memset(q->m->stages[i].x.host, 0x55, q->m->stages[i].x.bytes);
    sequence_fresh(q, NULL, 0, ids, N_PROMPT, row);
    for (uint32_t i = 0; i < q->m->n_stages; i++)
        for (uint64_t k = 0; k < q->m->stages[i].x.bytes; k++)
            is_written = is_written || q->m->stages[i].x.host[k] != 0x55;
    return is_written;
}

/* Twice, since the second prompt begins with the other half. */
static void a_prompt_crosses_without_the_host_or_by_it(void **state)
{
    (void)state;
    const struct setup one = {.dir = TINY, .device = "0"},
                       many = {.dir = TINY, .device = "0,0,0", .staged = true};
    struct sequence a = open_setup(&one), b = open_setup(&many);
    float *want = malloc(a.vocab * sizeof *want), *have = malloc(a.vocab * sizeof *have);
    int32_t ids[N_PROMPT];
    sequence_ids(&a, 1, ids, N_PROMPT);
    sequence_eval(&a, ids, N_PROMPT, want);
    bool is_there = crossing_is_there(&b.m->stages[0].crossing);
    assert_true(is_there || !device_is_software());
    if (!is_there)
        printf("SKIP a_prompt_crosses_without_the_host: the device cannot import host memory\n");
    for (int k = 0; k < 2; k++) {
        assert_true(crosses_by_the_host(&b, have) == !is_there);
        assert_memory_equal(want, have, a.vocab * sizeof *want);
    }
    crossing_close(&b.m->stages[1].crossing);
    assert_true(crosses_by_the_host(&b, have));
    assert_memory_equal(want, have, a.vocab * sizeof *want);
    crossing_close(&b.m->stages[0].crossing);
    assert_true(crosses_by_the_host(&b, have));
    assert_memory_equal(want, have, a.vocab * sizeof *want);
    free(want);
    free(have);
    sequence_close(&a);
    sequence_close(&b);
}

/* The result equals that of one device, wherever the border is: inside the CPU's layers or after them. */
static void each_device_has_experts_on_the_cpu(void **state)
{
    (void)state;
    CHECK_SAME_LOGITS({.dir = TINY, .device = "0", .n_cpu_layers = UINT32_MAX, .brief = true},
                      {.dir = TINY, .device = "0,0", .n_cpu_layers = UINT32_MAX, .brief = true});
    CHECK_SAME_LOGITS(
        {.dir = TINY, .device = "0", .n_cpu_layers = 3, .brief = true},
        {.dir = TINY,
         .device = "0,0",
         .n_cpu_layers = 3,
         .brief = true,
         .shares = {1, 1},
         .streams = true,
         .staged = true},
        {.dir = TINY, .device = "0,0", .n_cpu_layers = 3, .brief = true, .shares = {7, 1}, .streams = true});
}

/* What host memory others have no use for is all devices': for checkpoints, which each has its part of. */
static void a_device_that_needs_no_host_memory_gets_some(void **state)
{
    (void)state;
    const struct setup u = {.dir = TINY, .device = "0,0", .n_cpu_layers = 3};
    const struct moeflux_options o = options_of(&u);
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    check_ok(device_plan_staged(&o, true, &p, &e), &e);
    assert_true(p.devices[0].n_cpu_experts > 0 && p.devices[1].n_cpu_experts == 0);
    assert_true(p.n_cpu_slots == p.n_cpu_experts && p.n_cpu_experts == p.devices[0].n_cpu_experts);
    assert_true(p.checkpoint_bytes > 0 && p.n_checkpoints > 1);
}

/* A stage on the cpu has no second backend. */
static void a_cpu_among_devices_computes_its_own_experts(void **state)
{
    (void)state;
    const struct setup u = {.dir = TINY, .device = "0,cpu", .shares = {1, 1}, .n_cpu_layers = UINT32_MAX};
    struct sequence q = open_setup(&u);
    struct moeflux_stats s;
    float *row = malloc(q.vocab * sizeof *row);
    sequence_eval(&q, &(int32_t){5}, 1, row);
    moeflux_model_get_stats(q.m, &s);
    const struct moeflux_model_info info = moeflux_model_get_info(q.m);
    assert_int_equal(info.n_cpu_layers, info.n_layers);
    assert_int_equal(s.n_cpu_experts, s.devices[0].end_layer * info.top_k);
    assert_int_equal(s.n_cpu_slots, s.devices[0].n_slots);
    free(row);
    sequence_close(&q);
}

/* Its index and a part of its name give the same device, whose memory its stages share. */
static void a_device_has_one_index_by_all_its_names(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct exec *one, *other;
    char name[64];
    check_ok(exec_open(&one, &(struct exec_options){.device = "0"}, &e), &e);
    const struct exec_caps caps = exec_get_caps(one);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(caps.name, " ,"), caps.name);
    check_ok(exec_open(&other, &(struct exec_options){.device = name}, &e), &e);
    const struct exec_caps again = exec_get_caps(other), of_host = {.is_host = true};
    assert_int_equal(caps.index, 0);
    assert_true(devices_are_one(&caps, &again));
    assert_false(devices_are_one(&caps, &of_host));
    exec_close(one);
    exec_close(other);
}

/* Backends differ in the last digits. */
static void the_cpu_can_have_the_last_layers(void **state)
{
    (void)state;
    const struct setup one = {.dir = TINY, .device = "cpu"},
                       both = {.dir = TINY, .device = "0,cpu", .shares = {1, 3}};
    struct sequence a = open_setup(&one), b = open_setup(&both);
    int32_t ids[N_PROMPT];
    float *x = malloc(a.vocab * sizeof *x), *y = malloc(a.vocab * sizeof *y);
    sequence_ids(&a, 1, ids, N_PROMPT);
    sequence_eval(&a, ids, N_PROMPT, x);
    sequence_eval(&b, ids, N_PROMPT, y);
    assert_true(sequence_distance(&a, x, y) < 1e-4f);
    free(x);
    free(y);
    sequence_close(&a);
    sequence_close(&b);
}

/* ---- choices ---- */

enum { N_CHOICES = 10 };

/* Decodes tokens from id 1 on, each sampled from the one before: on the host every time, or every fourth
 * time. The logits after them go to `row`. */
static void choose(struct sequence *q, const struct moeflux_sampler_options *o, bool on_host, int32_t *ids,
                   float *row)
{
    struct moeflux_err e = {0};
    struct moeflux_sampler *s;
    int32_t prompt[N_PROMPT];
    check_ok(moeflux_sampler_new(&s, o, q->vocab, NULL, &e), &e);
    check_ok(moeflux_session_clear(q->s, &e), &e);
    sequence_ids(q, 1, prompt, 5);
    sequence_eval(q, prompt, 5, NULL);
    ids[0] = 1;
    for (int i = 0; i + 1 < N_CHOICES; i++) {
        if (!on_host && i % 4 != 3) {
            check_ok(moeflux_session_step(q->s, ids[i], s, true, &ids[i + 1], &e), &e);
            continue;
        }
        sequence_eval(q, &ids[i], 1, row);
        moeflux_sampler_accept(s, ids[i]);
        check_ok(ids[i + 1] = moeflux_sampler_pick(s, row, &e), &e);
    }
    sequence_eval(q, &ids[N_CHOICES - 1], 1, row);
    moeflux_sampler_free(s);
}

static uint64_t n_choices(const struct sequence *q)
{
    struct moeflux_stats s;
    uint64_t n = 0;
    moeflux_model_get_stats(q->m, &s);
    for (uint32_t i = 0; i < s.n_ops; i++)
        n += strcmp(s.ops[i].name, "sample_largest") == 0 ? s.ops[i].n : 0;
    return n;
}

/* Returns how many choices were a device's, and the ids of each kind of sampler. */
static uint64_t check_choices(const struct setup *u, int32_t ids[2][N_CHOICES])
{
    static const struct moeflux_sampler_options kinds[] = {{.top_p = 1, .repeat_penalty = 1},
                                                           {.temperature = 0.9f,
                                                            .top_k = 20,
                                                            .top_p = 0.9f,
                                                            .repeat_penalty = 1.3f,
                                                            .repeat_last = 4,
                                                            .seed = 7}};
    struct sequence q = open_setup(u);
    float *want = malloc(q.vocab * sizeof *want), *have = malloc(q.vocab * sizeof *have);
    for (int i = 0; i < 2; i++) {
        int32_t found[N_CHOICES];
        choose(&q, &kinds[i], true, ids[i], want);
        choose(&q, &kinds[i], false, found, have);
        assert_memory_equal(found, ids[i], sizeof found);
        assert_memory_equal(have, want, q.vocab * sizeof *have);
    }
    uint64_t n = n_choices(&q);
    free(want);
    free(have);
    sequence_close(&q);
    return n;
}

static void the_last_device_chooses_what_the_host_would(void **state)
{
    (void)state;
    int32_t one[2][N_CHOICES], both[2][N_CHOICES];
    check_choices(&(struct setup){.dir = TINY, .device = "0"}, one);
    /* A busy machine's slow tokens are the host's; not all of them can be. */
    assert_true(check_choices(&(struct setup){.dir = TINY, .device = "0,0", .staged = true, .profile = true},
                              both) > 0);
    assert_memory_equal(one, both, sizeof one);
    assert_true(check_choices(&(struct setup){.dir = TINY, .device = "0,cpu", .profile = true}, both) == 0);
}

static void choices_of_hosts_are_those_of_one(void **state)
{
    (void)state;
    int32_t one[2][N_CHOICES], both[2][N_CHOICES];
    check_choices(&(struct setup){.dir = ODD, .device = "cpu"}, one);
    check_choices(&(struct setup){.dir = ODD, .device = "cpu,cpu"}, both);
    assert_memory_equal(one, both, sizeof one);
}

/* ---- sequences ---- */

static void batched_logits_equal_those_of_each_sequence(void **state)
{
    (void)state;
    enum { N = 3 };
    const struct setup u = {.dir = ODD, .device = "cpu,cpu", .shares = {1, 2}};
    struct moeflux_err e = {0};
    struct sequence q = open_setup(&u);
    struct moeflux_session *list[N] = {q.s};
    float *rows[N], *alone = malloc(q.vocab * sizeof *alone);
    int32_t prompt[N_PROMPT], next[N] = {5, 9, 2};
    for (uint32_t i = 0; i < N; i++) {
        rows[i] = malloc(q.vocab * sizeof **rows);
        if (i > 0)
            check_ok(moeflux_session_new(&list[i], q.m, CONTEXT, &e), &e);
        sequence_ids(&q, i, prompt, 4 + i);
        check_ok(moeflux_session_eval(list[i], prompt, 4 + i, &(struct moeflux_outputs){0}, &e), &e);
    }
    for (uint32_t turn = 0; turn < 2; turn++)
        check_ok(moeflux_eval_batched(list, next, N, rows, &e), &e);
    for (uint32_t i = 0; i < N; i++) {
        sequence_ids(&q, i, prompt, 4 + i);
        sequence_fresh(&q, prompt, 4 + i, &next[i], 1, NULL);
        sequence_eval(&q, &next[i], 1, alone);
        assert_memory_equal(rows[i], alone, q.vocab * sizeof *alone);
    }
    for (uint32_t i = 0; i < N; i++)
        free(rows[i]);
    for (uint32_t i = 1; i < N; i++)
        moeflux_session_free(list[i]);
    free(alone);
    sequence_close(&q);
}

/* Saves after a prompt with one setup, continues with the other. */
static void save_and_go_on(const struct setup *from, const struct setup *to, const char *path)
{
    struct moeflux_err e = {0};
    struct record want = {0}, have = {0};
    int32_t ids[N_PROMPT];
    struct sequence a = open_setup(from), b = open_setup(to);
    sequence_ids(&a, 1, ids, N_PROMPT);
    sequence_eval(&a, ids, CHUNK, NULL);
    check_ok(moeflux_session_checkpoint(a.s, &e), &e);
    sequence_eval(&a, ids + CHUNK, N_PROMPT - CHUNK, NULL);
    check_ok(moeflux_session_save(a.s, path, MOEFLUX_STATE_V3, &e), &e);
    check_ok(moeflux_session_load(b.s, path, &e), &e);
    decode(&a, &want);
    decode(&b, &have);
    check_same(&want, &have, to);
    /* Back to the checkpoint, and on from there. */
    have.n = want.n = 0;
    check_ok(moeflux_session_restore(a.s, CHUNK, &e), &e);
    check_ok(moeflux_session_restore(b.s, CHUNK, &e), &e);
    decode(&a, &want);
    decode(&b, &have);
    check_same(&want, &have, to);
    free(want.bytes);
    free(have.bytes);
    sequence_close(&a);
    sequence_close(&b);
}

static void a_saved_state_does_not_depend_on_the_split(void **state)
{
    (void)state;
    const struct setup one = {.dir = ODD, .device = "cpu"},
                       two = {.dir = ODD, .device = "cpu,cpu", .shares = {1, 2}},
                       other = {.dir = ODD, .device = "cpu,cpu", .shares = {5, 1}};
    const struct setup latent = {.dir = DEEPSEEK, .device = "cpu"},
                       latents = {.dir = DEEPSEEK, .device = "cpu,cpu"};
    char *dir = tmp_tree_new();
    const char *path = tmp_tree_path(dir, "state");
    save_and_go_on(&two, &one, path);
    save_and_go_on(&one, &two, path);
    save_and_go_on(&two, &other, path);
    save_and_go_on(&latents, &latent, path);
    tmp_tree_remove(dir);
}

/* ---- stops and faults ---- */

struct patience {
    uint32_t left;
};

static bool run_out(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct patience *p = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    return p->left == 0 || --p->left > 0;
}

/* Wherever the callback says stop, the sequence keeps whole chunks on all devices. */
static void stop_everywhere(const struct setup *u)
{
    struct moeflux_err e = {0};
    struct patience p = {0};
    struct sequence q = {0};
    int32_t ids[N_PROMPT];
    struct moeflux_options o = options_of(u);
    o.progress = (struct moeflux_progress){run_out, &p};
    o.chunk = 8;
    check_ok(moeflux_model_open(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    q.vocab = moeflux_model_get_info(q.m).vocab_size;
    float *want = malloc(q.vocab * sizeof *want), *have = malloc(q.vocab * sizeof *have);
    sequence_ids(&q, 1, ids, N_PROMPT);
    sequence_fresh(&q, NULL, 0, ids, N_PROMPT, want);
    uint32_t n_stopped = 0, n_between = 0;
    for (uint32_t most = 1;; most += most < 6 ? 1 : 5) {
        check_ok(moeflux_session_clear(q.s, &e), &e);
        p.left = most;
        int rc = moeflux_session_eval(q.s, ids, N_PROMPT, &(struct moeflux_outputs){.logits = have}, &e);
        p.left = 0;
        uint32_t pos = moeflux_session_position(q.s);
        if (rc == 0)
            break;
        assert_int_equal(rc, ERR_INTERRUPTED);
        assert_true(pos % 8 == 0 && pos < N_PROMPT);
        n_stopped++;
        n_between += pos > 0;
        sequence_eval(&q, ids + pos, N_PROMPT - pos, have);
        assert_memory_equal(want, have, q.vocab * sizeof *want);
    }
    assert_true(n_stopped > 4 && n_between > 0);
    /* States have changed places, those of a model without any as well as others:
     * each is one that was made. */
    for (uint32_t i = 0; i < q.m->n_stages; i++)
        assert_true(q.s->on[i].recurrent.address && q.s->on[i].recurrent_next.address);
    free(want);
    free(have);
    sequence_close(&q);
}

static void a_stopped_prompt_can_be_gone_on_with(void **state)
{
    (void)state;
    stop_everywhere(&(struct setup){.dir = ODD, .device = "cpu,cpu", .shares = {1, 2}});
    stop_everywhere(&(struct setup){.dir = ODD, .device = "cpu,cpu,cpu", .shares = {3, 2, 1}});
    stop_everywhere(&(struct setup){.dir = QWEN3, .device = "cpu,cpu"});
}

/* Inside a chunk, at its end, and where a run of chunks makes them by itself. */
static void a_long_prompt_makes_the_same_checkpoints(void **state)
{
    (void)state;
    static const uint32_t marks[] = {5, CHUNK, 23, 2 * CHUNK, 35};
    const struct setup setups[] = {{.dir = ODD, .device = "cpu"}, {.dir = ODD, .device = "cpu,cpu,cpu"}};
    struct record got[2] = {0};
    for (int k = 0; k < 2; k++) {
        struct sequence q = open_setup(&setups[k]);
        struct moeflux_err e = {0};
        int32_t ids[N_PROMPT];
        sequence_ids(&q, 1, ids, N_PROMPT);
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
            uint32_t at[8] = {0};
            check_ok(moeflux_session_clear(q.s, &e), &e);
            moeflux_session_set_checkpoint_every(q.s, i % 2 ? CHUNK : 0);
            moeflux_session_checkpoint_at(q.s, marks[i]);
            sequence_eval(&q, ids, N_PROMPT, NULL);
            uint32_t n = moeflux_session_list_checkpoints(q.s, at, 8);
            assert_true(n >= 1 && n <= 8);
            add(&got[k], at, sizeof at);
            decode(&q, &got[k]);
            check_ok(moeflux_session_restore(q.s, marks[i], &e), &e);
            decode(&q, &got[k]);
        }
        sequence_close(&q);
    }
    check_same(&got[0], &got[1], &setups[1]);
    free(got[0].bytes);
    free(got[1].bytes);
}

static int lose(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    (void)x, (void)ticket;
    return err_set(e, ERR_DEVICE, "waiting: the device was lost");
}

static int have_no_memory(struct exec *x, struct exec_buffer *b, enum exec_memory kind, struct moeflux_err *e)
{
    (void)x, (void)b, (void)kind;
    return err_set(e, ERR_NO_FIT, "out of memory");
}

/* The backend of a stage's device, and one that fails. */
struct breakage {
    struct exec *of;
    const struct backend *real;
    struct backend broken;
};

static void break_stage(struct breakage *b, struct moeflux_model *m, uint32_t stage)
{
    b->of = m->stages[stage].exec;
    b->real = b->of->backend;
    b->broken = *b->real;
    b->of->backend = &b->broken;
}

static void mend(struct breakage *b)
{
    b->of->backend = b->real;
}

/* Appends one token, one chunk, and a prompt that is pipelined over all devices. */
static void a_lost_device_is_named(void **state)
{
    (void)state;
    static const char *const names[] = {"device 1 of 2 (CPU", "device 2 of 2 (CPU"},
                             *const layers[] = {"layers 0 to 2): waiting: the device was lost",
                                                "layers 3 to 5): waiting: the device was lost"};
    const struct setup u = {.dir = ODD, .device = "cpu,cpu"};
    struct moeflux_err e = {0};
    struct sequence q = open_setup(&u);
    float *row = malloc(q.vocab * sizeof *row);
    int32_t ids[N_PROMPT];
    sequence_ids(&q, 1, ids, N_PROMPT);
    for (uint32_t k = 0; k < 2; k++) {
        struct breakage b;
        sequence_eval(&q, ids, CHUNK, NULL);
        break_stage(&b, q.m, k);
        b.broken.wait = lose;
        for (uint32_t n = 1; n <= N_PROMPT; n += 18) {
            int rc = moeflux_session_eval(q.s, ids, n, &(struct moeflux_outputs){.logits = row}, &e);
            sequence_refused(rc, &e, ERR_DEVICE, names[k]);
            sequence_refused(rc, &e, ERR_DEVICE, layers[k]);
        }
        mend(&b);
        check_ok(moeflux_session_clear(q.s, &e), &e);
        sequence_eval(&q, ids, 3, row);
        check_ok(moeflux_session_clear(q.s, &e), &e);
    }
    free(row);
    sequence_close(&q);
}

/* Memory for a sequence's states and for the outputs of an evaluation. */
static void a_device_that_runs_out_of_memory_is_named(void **state)
{
    (void)state;
    static const char text[] = "device 2 of 2 (CPU";
    const struct setup u = {.dir = ODD, .device = "cpu,cpu"};
    struct moeflux_err e = {0};
    struct sequence q = open_setup(&u);
    struct record none = {0};
    struct hearing h = {&none, q.vocab, moeflux_model_get_info(q.m).hidden};
    const struct moeflux_outputs hidden = {.hidden = hear_hidden, .ctx = &h};
    struct moeflux_session *s;
    struct breakage b;
    check_ok(moeflux_session_new(&s, q.m, CONTEXT, &e), &e);
    break_stage(&b, q.m, 1);
    b.broken.buffer_new = have_no_memory;
    sequence_refused(moeflux_session_eval(q.s, &(int32_t){5}, 1, &hidden, &e), &e, ERR_NO_FIT, text);
    sequence_refused(moeflux_session_eval(s, &(int32_t){5}, 1, &(struct moeflux_outputs){0}, &e), &e,
                     ERR_NO_FIT, text);
    moeflux_session_free(s);
    sequence_refused(moeflux_session_new(&s, q.m, CONTEXT, &e), &e, ERR_NO_FIT, text);
    mend(&b);
    check_ok(moeflux_session_eval(q.s, &(int32_t){5}, 1, &hidden, &e), &e);
    free(none.bytes);
    sequence_close(&q);
}

static void what_cannot_be_shared_out_is_refused_at_once(void **state)
{
    (void)state;
    const struct {
        struct moeflux_options o;
        int code;
        const char *text;
    } cases[] = {
        {{.device = "cpu,"}, ERR_USAGE, "device 2 has no name"},
        {{.device = ",cpu"}, ERR_USAGE, "device 1 has no name"},
        {{.device = "cpu,nobody"}, ERR_USAGE, "nobody"},
        {{.device = "nobody,nobody"}, ERR_USAGE, "nobody"},
        {{.device = "cpu,all"}, ERR_USAGE, "all stands for every GPU"},
        {{.device = "cpu,99"}, ERR_USAGE, "`device` 99: no such device"},
        {{.device = "cpu,cpu,cpu,cpu,cpu,cpu,cpu"}, ERR_USAGE, "names 7 devices, the model has 6 layers"},
        {{.device = "c,c,c,c,c,c,c,c,c,c,c,c,c,c,c,c,c"}, ERR_USAGE, "more than 16 devices"},
        {{.device = "cpu,cpu", .n_tensor_split = 3}, ERR_USAGE, "has 3 shares, expected 2"},
        {{.device = "cpu", .n_tensor_split = 2}, ERR_USAGE, "has 2 shares, expected 1"},
        {{.device = "cpu,cpu", .tensor_split = {1, -1}, .n_tensor_split = 2}, ERR_USAGE, "share 2 is -1"},
        {{.device = "cpu,cpu", .n_gpu_memory = 3}, ERR_USAGE, "has 3 sizes, expected one, or 2"},
        {{.device = "cpu,cpu", .n_cpu_layers = 2}, ERR_USAGE, "needs a GPU for the rest of the model; CPU ("},
        {{.device = "cpu,cpu", .memory_bytes = 1000}, ERR_NO_FIT, "`memory_bytes` is 0.00 MiB, the experts"},
        {{.device = "reference,reference", .gpu_memory_each = {1 << 30, 1000}, .n_gpu_memory = 2},
         ERR_NO_FIT,
         "device 2 of 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_options o = cases[i].o;
        struct moeflux_model *m;
        struct moeflux_plan p;
        struct moeflux_err e = {0};
        o.dir = ODD;
        sequence_refused(moeflux_model_open(&m, &o, &e), &e, cases[i].code, cases[i].text);
        assert_null(m);
        sequence_refused(moeflux_make_plan(&o, &p, &e), &e, cases[i].code, cases[i].text);
    }
}

static void the_plan_has_a_row_for_each_device(void **state)
{
    (void)state;
    struct moeflux_options o = {
        .dir = ODD, .device = "cpu,cpu", .tensor_split = {2, 1}, .n_tensor_split = 2, .context = CONTEXT};
    struct moeflux_plan p, one;
    struct moeflux_stats s;
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    check_ok(moeflux_make_plan(&o, &p, &e), &e);
    assert_int_equal(p.n_devices, 2);
    assert_true(p.devices[0].first_layer == 0 && p.devices[0].end_layer == 4);
    assert_true(p.devices[1].first_layer == 4 && p.devices[1].end_layer == 6);
    assert_int_equal(p.devices[0].n_experts, 2 * p.devices[1].n_experts);
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    moeflux_model_get_stats(m, &s);
    assert_int_equal(s.n_devices, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(s.devices[i].first_layer, p.devices[i].first_layer);
        assert_int_equal(s.devices[i].n_slots, p.devices[i].n_slots);
    }
    moeflux_model_close(m);
    o.device = "cpu";
    o.n_tensor_split = 0;
    check_ok(moeflux_make_plan(&o, &one, &e), &e);
    assert_true(one.n_devices == 1 && one.n_experts == p.n_experts && one.weights_bytes == p.weights_bytes &&
                one.checkpoint_bytes == p.checkpoint_bytes && one.state_bytes < p.state_bytes);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(what_cannot_be_shared_out_is_refused_at_once),
    };
    const struct CMUnitTest on_vulkan[] = {
        cmocka_unit_test(a_device_named_twice_computes_what_it_does_alone),
        cmocka_unit_test(a_prompt_crosses_without_the_host_or_by_it),
        cmocka_unit_test(each_device_has_experts_on_the_cpu),
        cmocka_unit_test(a_device_that_needs_no_host_memory_gets_some),
        cmocka_unit_test(a_cpu_among_devices_computes_its_own_experts),
        cmocka_unit_test(a_device_has_one_index_by_all_its_names),
        cmocka_unit_test(the_cpu_can_have_the_last_layers),
        cmocka_unit_test(the_last_device_chooses_what_the_host_would),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(any_split_computes_what_one_device_does),
        cmocka_unit_test(a_device_begins_with_a_layer_that_has_an_indexer),
        cmocka_unit_test(layers_that_share_compressed_rows_stay_together),
        cmocka_unit_test(streamed_experts_change_nothing),
        cmocka_unit_test(batched_logits_equal_those_of_each_sequence),
        cmocka_unit_test(choices_of_hosts_are_those_of_one),
        cmocka_unit_test(a_saved_state_does_not_depend_on_the_split),
        cmocka_unit_test(a_stopped_prompt_can_be_gone_on_with),
        cmocka_unit_test(a_long_prompt_makes_the_same_checkpoints),
        cmocka_unit_test(a_lost_device_is_named),
        cmocka_unit_test(a_device_that_runs_out_of_memory_is_named),
        cmocka_unit_test(the_plan_has_a_row_for_each_device),
    };
    return device_run_tests(everywhere, on_vulkan, on_hosts);
}
