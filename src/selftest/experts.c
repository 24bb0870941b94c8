/* The self-test's cases of the experts' operations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "ops/experts/experts.h"
#include "ops/gating.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"
#include "selftest/kernel_test.h"

struct moe_shape {
    uint32_t n_experts, top_k, hidden, inner;
    uint32_t shared; /* 0: no shared expert */
    uint32_t format, n;
    uint32_t tile; /* 1 + the size of tiles to use; 0: as the number of tokens asks for */
    uint32_t shared_up_format;
    uint32_t gate;               /* 1 + the gate's format; 0: as up's, `format` */
    float gating, shared_gating; /* ops/gating.h */
    struct expert_part part;     /* experts_call.part */
    bool ungated;                /* the shared expert has no gate */
    bool ties;                   /* all logits are equal */
    bool drops;                  /* tokens have from one to top_k experts */
    /* Paths for few tokens: the operation itself makes the shared rows, or chooses the experts. */
    bool makes_shared, chooses, plain_weights;
    bool biased;
    bool is_rest; /* kernel_test.h */
};

/* Whether the operation has tiles of so many sizes; from now on it has the last of these alone. */
static bool force_tile(struct experts_grouped *op, uint32_t tile)
{
    bool has = tile <= op->n_tiles;
    if (has) {
        op->tiles[0] = op->tiles[tile - 1];
        op->n_tiles = 1;
    }
    return has;
}

/* Places a projection at *end and moves *end past it. */
static void place_part(uint32_t format, uint64_t n, uint32_t *w, uint32_t *scales, uint32_t *biases,
                       uint64_t *end)
{
    const struct format *f = format_of(format);
    *w = (uint32_t)*end;
    *scales = (uint32_t)(*end + format_code_bytes(f, n));
    *biases = *scales + (uint32_t)format_scale_bytes(f, n);
    *end += format_all_bytes(f, n);
}

/* One expert's nine parts as convert lays them out. */
static struct experts_shape moe_layout(const struct moe_shape *c, uint32_t down_format, uint64_t *bytes)
{
    struct experts_shape s = {.n_experts = c->n_experts,
                              .top_k = c->top_k,
                              .hidden = c->hidden,
                              .inner = c->inner,
                              .gate_format = c->gate ? c->gate - 1 : c->format,
                              .up_format = c->format,
                              .down_format = down_format,
                              .down_formats = format_set(down_format) | format_set(FORMAT_Q4),
                              .eps = 1e-6f,
                              .shared_gate = !c->ungated,
                              .shared_inner = c->makes_shared ? c->shared : 0,
                              .chooses = c->chooses,
                              .drops = c->drops || c->part.n_cpu > 0,
                              .norm_topk = !c->plain_weights,
                              .biased = c->biased,
                              .gating = c->gating,
                              .shared_gating = c->shared_gating};
    uint64_t n = (uint64_t)c->inner * c->hidden;
    s.up_formats = format_set(s.gate_format) | format_set(s.up_format) | format_set(c->shared_up_format);
    *bytes = 0;
    place_part(s.gate_format, n, &s.gate_w, &s.gate_s, &s.gate_b, bytes);
    if (c->gating >= GATING_RELU) /* up is read as the gate, too */
        *bytes = 0;
    place_part(s.up_format, n, &s.up_w, &s.up_s, &s.up_b, bytes);
    place_part(s.down_format, n, &s.down_w, &s.down_s, &s.down_b, bytes);
    return s;
}

/* Makes a random expert: three contiguous matrices. */
static struct test_buffer *random_expert(struct kernel_test *l, const struct experts_shape *s, uint64_t bytes)
{
    uint8_t *raw = mem_new(bytes, 1, &l->err);
    uint64_t at = 0;
    for (int i = s->gate_w == s->up_w; raw && i < 3; i++) {
        uint32_t rows = i < 2 ? s->inner : s->hidden, cols = i < 2 ? s->hidden : s->inner;
        struct weights w[KT_SIDES];
        uint32_t first = l->n_buffers;
        kt_matrix(l, rows, cols, i == 0 ? s->gate_format : i == 1 ? s->up_format : s->down_format, w);
        for (uint32_t t = first; t < l->n_buffers; t++) {
            const struct exec_buffer *b = &l->buffers[t].on[KT_REFERENCE];
            if (!l->err.code)
                memcpy(raw + at, b->host, b->bytes);
            at += b->bytes;
            for (int side = 0; side < KT_SIDES; side++)
                exec_buffer_free(l->side[side], &l->buffers[t].on[side]);
        }
        l->n_buffers = first;
    }
    struct test_buffer *t = kt_bytes(l, raw, raw ? bytes : 0);
    free(raw);
    return t;
}

/* Fills idx with distinct experts out of those that the table holds, as many as each token has. */
static struct test_buffer *random_choice(struct kernel_test *l, const struct moe_shape *c)
{
    uint32_t idx[1024];
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t k = 0; k < c->top_k; k++) {
            bool is_there = !c->drops || k <= (t + 1) % c->top_k;
            idx[t * c->top_k + k] = is_there ? ((t < 20 ? t * 3 : 0) + k) % c->n_experts : NO_EXPERT;
        }
    return kt_bytes(l, idx, 4 * (uint64_t)c->n * c->top_k);
}

static void run_experts(struct exec *x, const struct experts *op, const struct experts_call *all, bool apart)
{
    struct experts_call call = *all;
    exec_begin(x);
    /* The calls of a layer whose experts arrive at different times. */
    if (apart && all->shared_up && !experts_grouped_takes(&op->gpu.grouped, all)) {
        call.skip = 1;
        experts_run_up(op, x, &call);
        call.skip = ~(uint64_t)1;
        call.skip_shared = true;
    }
    experts_run_up(op, x, &call);
    if (apart) {
        call.shared_down = (struct weights){0};
        experts_run_down(op, x, &call);
        call.shared_down = all->shared_down;
        call.only_shared = true;
    }
    experts_run_down(op, x, &call);
}

struct moe_case {
    const struct moe_shape *shape;
    struct experts_shape layout;
    /* the device computes the first expert before the others, and the shared one after them */
    bool apart;
    uint32_t stride; /* numbers from one row of the router's product to the next */
    struct test_buffer *table, *idx, *weights, *shared_in, *norm, *x, *act, *scratch, *f16, *up_biases,
        *down_biases;
    struct weights shared_gate[KT_SIDES], shared_up[KT_SIDES], shared_down[KT_SIDES];
};

/* More experts than these are some of them again. */
enum { DIFFERENT_EXPERTS = 16 };

static void prepare_experts(struct kernel_test *l, struct moe_case *m, uint64_t bytes)
{
    struct test_buffer *experts[256];
    const struct moe_shape *c = m->shape;
    for (uint32_t i = 0; i < c->n_experts; i++)
        experts[i] =
            i < DIFFERENT_EXPERTS ? random_expert(l, &m->layout, bytes) : experts[i % DIFFERENT_EXPERTS];
    for (uint32_t i = 0; i < c->n_experts; i++)
        experts[i] = expert_part_has(&c->part, c->n_experts, i) ? experts[i] : NULL;
    m->table = kt_table(l, experts, c->n_experts);
}

static void prepare_moe(struct kernel_test *l, struct moe_case *m, uint32_t down_format)
{
    const struct moe_shape *c = m->shape;
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    uint64_t bytes;
    m->layout = moe_layout(c, down_format, &bytes);
    prepare_experts(l, m, bytes);
    if (c->shared)
        kt_matrix(l, c->hidden, c->shared, FORMAT_Q4, m->shared_down);
    if (c->makes_shared) {
        kt_matrix(l, c->shared, c->hidden, c->shared_up_format, m->shared_gate);
        kt_matrix(l, c->shared, c->hidden, c->shared_up_format, m->shared_up);
        if (c->gating >= GATING_RELU)
            memcpy(m->shared_gate, m->shared_up, sizeof m->shared_gate);
    }
    m->stride = c->n_experts + !c->ungated + 2 * c->shared;
    m->idx = random_choice(l, c);
    m->weights = kt_floats(l, (uint64_t)c->n * c->top_k, 0, 0.5f);
    m->shared_in = c->ties ? kt_bytes(l, NULL, 4 * (uint64_t)c->n * m->stride)
                           : kt_floats(l, (uint64_t)c->n * m->stride, -2, 2);
    m->norm = kt_floats(l, c->hidden, 0.5f, 1.5f);
    m->x = kt_floats(l, (uint64_t)c->n * c->hidden, -2, 2);
    m->up_biases = kt_floats(l, c->biased ? 2 * (uint64_t)c->n_experts * c->inner : 1, -2, 2);
    m->down_biases = kt_floats(l, c->biased ? (uint64_t)c->n_experts * c->hidden : 1, -2, 2);
    m->act = kt_bytes(l, NULL, 4 * (uint64_t)c->n * experts_act_row(&m->layout));
    m->scratch = kt_bytes(l, NULL, 4 * experts_scratch(&m->layout, &caps, c->n, c->shared));
    m->f16 = kt_bytes(l, NULL, 2 * size_max((uint64_t)c->n * c->shared, 2));
}

/* Returns the tokens of a tile, where the shape names one; UINT32_MAX where the device has no such tile. */
static uint32_t run_moe_side(struct kernel_test *l, const struct moe_case *m, int s)
{
    const struct moe_shape *c = m->shape;
    struct experts op = {0};
    struct linear shared_out = {0};
    struct router router;
    struct experts_shared shared_up = {0};
    struct exec *x = l->side[s];
    uint32_t tokens = 0;
    const struct router_shape route = {
        .n_experts = c->n_experts, .top_k = c->top_k, .norm = !c->plain_weights};
    if (experts_open(&op, x, &m->layout, &l->err) < 0 || router_open(&router, x, &route, &l->err) < 0 ||
        (c->shared && linear_open(&shared_out, x, &m->shared_down[s], 1, &l->err) < 0) ||
        (c->makes_shared &&
         experts_shared_open(&shared_up, x, &m->shared_gate[s], &m->shared_up[s], &l->err) < 0))
        return 0;
    if (s == KT_DEVICE && c->tile)
        tokens = force_tile(&op.gpu.grouped, c->tile) ? op.gpu.grouped.tiles[0].tokens : UINT32_MAX;
    const struct experts_call call = {.x = m->x->on[s].address,
                                      .norm = m->norm->on[s].address,
                                      .table = m->table->on[s].address,
                                      .idx = m->idx->on[s].address,
                                      .weights = m->weights->on[s].address,
                                      .act = m->act->on[s].address,
                                      .router = c->chooses ? &router : NULL,
                                      .biases = {m->up_biases->on[s].address, m->down_biases->on[s].address},
                                      .shared_in = m->shared_in->on[s].address,
                                      .shared_up = c->makes_shared ? &shared_up : NULL,
                                      .shared_down = m->shared_down[s],
                                      .shared_stride = m->stride,
                                      .n = c->n,
                                      .chunk = c->n,
                                      .scratch = m->scratch->on[s].address,
                                      .f16_scratch = m->f16->on[s].address,
                                      .shared_out = &shared_out,
                                      .part = c->part};
    if (tokens != UINT32_MAX) {
        run_experts(x, &op, &call, m->apart && s == KT_DEVICE);
        kt_finish(l, s);
    }
    linear_close(&shared_out, x);
    experts_shared_close(&shared_up, x);
    return tokens;
}

static void name_moe(const struct moe_case *m, char *text, size_t room)
{
    const struct moe_shape *c = m->shape;
    uint32_t down = m->layout.down_format;
    snprintf(text, room, "%s%s%u of %u, %ux%u %s%s%s, %s %u%s%s%s%s, %u token%s", c->chooses ? "chosen " : "",
             c->plain_weights ? "as they are " : "", c->top_k, c->n_experts, c->hidden, c->inner,
             kt_format_name(c->format), c->gate ? ", another gate" : "",
             down == c->format ? "" : " and another", c->makes_shared ? "with" : "shared", c->shared,
             c->makes_shared && c->shared_up_format != c->format ? " in another format" : "",
             c->ungated ? " ungated" : "",
             c->biased && c->gating > 0         ? " biased, limited"
             : c->biased                        ? " biased"
             : c->gating >= GATING_RELU         ? " without gates"
             : c->gating >= GATING_GELU         ? " GELU"
             : c->gating >= GATING_SITU         ? " SiTU"
             : c->gating > 0                    ? " limited"
             : c->gating < -1e6f                ? " inputs clamped"
             : c->gating + c->shared_gating < 0 ? " clamped"
             : m->apart                         ? " apart"
                                                : "",
             c->ties                            ? " tied"
             : c->part.n_cpu && c->part.is_cpus ? " the CPU's"
             : c->part.n_cpu                    ? " without the CPU's"
             : c->drops                         ? " some dropped"
                                                : "",
             c->n, c->n > 1 ? "s" : "");
}

/* down_format: of the routed experts' down projections. */
static void moe_case_of(struct kernel_test *l, const struct moe_shape *c, uint32_t down_format, bool apart)
{
    if (!kt_takes(l, c->is_rest || l->is_rest))
        return;
    struct moe_case m = {.shape = c, .apart = apart};
    uint32_t tokens = 0;
    char text[160];
    prepare_moe(l, &m, down_format);
    name_moe(&m, text, sizeof text);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        uint32_t got = run_moe_side(l, &m, s);
        tokens = s == KT_DEVICE ? got : tokens;
        if (tokens == UINT32_MAX) {
            snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles no. %u", c->tile);
            kt_skip(l, "experts_decode_down", text);
            return;
        }
    }
    if (tokens)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", tiles of %u", tokens);
    double bound = kt_product_bound(l, c->n, 16);
    double up_bound = kt_int16_bound(l, m.layout.up_format, c->n, bound);
    double up = kt_error(l, m.act, c->n * experts_act_floats(&m.layout, c->makes_shared));
    double down_error = kt_error(l, m.x, (uint64_t)c->n * c->hidden);
    if (c->chooses)
        up = fmax(up, kt_difference(l, m.idx, (uint64_t)c->n * c->top_k) +
                          kt_error(l, m.weights, (uint64_t)c->n * c->top_k));
    /* Float16 between the two is another layout than the reference's; what comes of it is compared. */
    if (bound == KT_PRODUCT_BOUND)
        kt_row(l, "experts_decode_up", text, up, up_bound);
    kt_report(l, "experts_decode_down", text, down_error, kt_int16_bound(l, down_format, c->n, up_bound));
}

static void moe_case(struct kernel_test *l, const struct moe_shape *c, uint32_t down_format)
{
    moe_case_of(l, c, down_format, false);
}

/* The shared expert among those of many tokens: as wide as they are and stored alike. One that is stored
 * otherwise has products of its own. */
static void joined_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 192, 128, 128, FORMAT_Q4, 70, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 3, 256, 64, 64, FORMAT_Q4, 33, .makes_shared = true, .chooses = true, .ungated = true,
         .shared_up_format = FORMAT_Q4},
        {12, 4, 192, 64, 64, FORMAT_Q4, 40, .drops = true, .makes_shared = true,
         .shared_up_format = FORMAT_Q4},
        {6, 2, 256, 128, 128, FORMAT_Q4, 40, .makes_shared = true, .shared_up_format = FORMAT_Q4},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    moe_case_of(l, &shapes[0], FORMAT_Q4, true);
    for (uint32_t tile = 1; tile <= EXPERTS_MAX_TILES; tile++)
        moe_case(l,
                 &(struct moe_shape){6, 2, 640, 384, 384, FORMAT_Q4, 110, .makes_shared = true, .tile = tile,
                                     .shared_up_format = FORMAT_Q4, .is_rest = true},
                 FORMAT_Q4);
}

/* One token, and the few that the same kernels take: up chooses, and computes the shared expert's gate and up
 * rows. On the CPU the router's product computes those. */
static void choosing_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 192, 64, 192, FORMAT_Q4, 1, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 192, 64, FORMAT_Q4, 3, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q8},
        {256, 8, 2048, 512, 512, FORMAT_Q4, 1, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q4, .is_rest = true},
        {16, 8, 1984, 512, 512, FORMAT_Q4, 4, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q4},
        {100, 10, 256, 64, 128, FORMAT_Q8, 2, .makes_shared = true, .chooses = true, .plain_weights = true,
         .ungated = true, .shared_up_format = FORMAT_BF16, .is_rest = true},
        {70, 16, 128, 64, 0, FORMAT_Q4, 1, .chooses = true, .plain_weights = true, .ungated = true},
        {40, 33, 128, 64, 64, FORMAT_Q4, 2, .chooses = true, .ties = true, .is_rest = true},
        {33, 5, 64, 64, 64, FORMAT_Q4, 1, .makes_shared = true, .chooses = true, .ties = true,
         .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .chooses = true},
        {12, 4, 192, 64, 64, FORMAT_Q4, 1, .drops = true, .makes_shared = true,
         .shared_up_format = FORMAT_Q4},
        {3, 2, 4608, 128, 64, FORMAT_Q4, 2, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 10, 320, 1024, 1024, FORMAT_Q4, 2, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {5, 3, 192, 1024, 0, FORMAT_Q8, 1, .ungated = true},
        {5, 3, 320, 1024, 0, FORMAT_BF16, 1, .ungated = true},
        /* 48 pieces of a row: half of 32 lanes have none at the last step. */
        {12, 10, 320, 1536, 0, FORMAT_Q4, 1, .ungated = true, .is_rest = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (kt_has_kernels(l) || !shapes[i].makes_shared)
            moe_case(l, &shapes[i], shapes[i].format);
    if (!kt_has_kernels(l))
        return;
    joined_cases(l);
    moe_case_of(l, &shapes[0], FORMAT_Q4, true);
    moe_case_of(l, &shapes[8], FORMAT_Q4, true);
    l->is_long = true;
    moe_case_of(l, &shapes[10], FORMAT_Q4, true);
    l->is_long = false;
    moe_case_of(l,
                &(struct moe_shape){12, 4, 256, 64, 128, FORMAT_Q8, 3, .makes_shared = true, .ungated = true,
                                    .shared_up_format = FORMAT_Q8, .is_rest = true},
                FORMAT_Q8, true);
}

/* Brief: many tokens of every second kind; the shapes below have the others, with few tokens. Their kernels
 * read weights with the functions of linear's, which are held to all. Of many tokens other cases have the
 * first: 4 bits, and those with biases. */
static void moe_format_cases(struct kernel_test *l)
{
    for (uint32_t i = 0; i < (kt_is_brief(l) ? KT_N_KINDS : KT_N_FORMATS); i++) {
        uint32_t f = kt_formats[i];
        if (format_of(f)->scheme == SCHEME_PLAIN)
            continue;
        if (!kt_is_brief(l))
            moe_case(l, &(struct moe_shape){12, 3, 384, 128, 128, f, 1, .tile = 0}, f);
        if (!kt_is_brief(l) || i % 2 == 0)
            moe_case(l, &(struct moe_shape){12, 3, 384, 128, 128, f, 70, .is_rest = true}, f);
    }
    if (!kt_has_kernels(l))
        return;
    /* The shared expert in up's kernel or in one of its own, with the choice. */
    static const struct moe_shape shapes[] = {
        {12, 3, 192, 64, 192, FORMAT_Q3, 1, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q3, .is_rest = true},
        {12, 3, 192, 192, 64, FORMAT_Q2, 3, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q8, .is_rest = true},
        {33, 5, 64, 64, 64, FORMAT_Q4, 1, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q6, .is_rest = true},
        {16, 8, 2048, 512, 512, FORMAT_MXFP4, 2, .drops = true, .makes_shared = true,
         .shared_up_format = FORMAT_Q4, .is_rest = true},
        {12, 3, 192, 64, 128, FORMAT_MXFP8, 2, .makes_shared = true, .shared_up_format = FORMAT_NVFP4,
         .is_rest = true},
        {12, 3, 256, 64, 128, FORMAT_NVFP4, 2, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_Q4},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    moe_case_of(l, &shapes[1], FORMAT_Q2, true);
    l->is_rest = true;
    moe_case(l, &shapes[0], FORMAT_Q6);
    moe_case_of(l, &shapes[5], FORMAT_MXFP4, true);
    l->is_rest = false;
    for (uint32_t f = FORMAT_Q2; !kt_is_brief(l) && f < FORMAT_F16; f++)
        moe_case(l,
                 &(struct moe_shape){16, 8, 2048, 512, 512, f, 1, .makes_shared = true, .chooses = true,
                                     .shared_up_format = FORMAT_Q4},
                 f);
    /* Brief: the smallest and the largest tiles, with one format each. */
    for (uint32_t tile = 1; tile <= EXPERTS_MAX_TILES; tile += kt_is_brief(l) ? EXPERTS_MAX_TILES - 1 : 1)
        for (uint32_t i = FORMAT_Q2 + tile % 2; i < FORMAT_F16; i += kt_is_brief(l) ? FORMAT_KINDS : 2)
            moe_case(l, &(struct moe_shape){6, 2, 640, 384, 64, i, 110, .tile = tile, .is_rest = true},
                     FORMAT_Q3);
}

/* Experts in block formats as GGUF files have them: down projections with more bits, a shared expert in
 * another format. */
static void moe_block_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 256, 256, 256, FORMAT_G_IQ2_XXS, 1, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_G_Q8_0},
        {12, 3, 512, 256, 128, FORMAT_G_Q4_K, 3, .makes_shared = true, .chooses = true,
         .shared_up_format = FORMAT_G_Q4_K, .is_rest = true},
        {33, 5, 256, 512, 64, FORMAT_G_Q2_K, 2, .makes_shared = true, .shared_up_format = FORMAT_Q4,
         .is_rest = true},
        {12, 4, 256, 256, 64, FORMAT_G_IQ1_M, 2, .drops = true, .is_rest = true},
    };
    for (uint32_t f = FORMAT_BLOCK_FIRST; !kt_is_brief(l) && f < FORMAT_END; f++) {
        moe_case(l, &(struct moe_shape){12, 3, 512, 256, 256, f, 1 + f % 3, .tile = 0}, f);
        moe_case(l, &(struct moe_shape){12, 3, 512, 256, 256, f, 70, .tile = 0}, f);
    }
    moe_case(l, &shapes[3], FORMAT_G_IQ4_NL);
    moe_case(l, &(struct moe_shape){12, 3, 256, 256, 256, FORMAT_G_IQ2_S, 70, .tile = 0}, FORMAT_G_Q4_0);
    if (!kt_has_kernels(l))
        return;
    moe_case(l, &shapes[0], FORMAT_G_IQ3_XXS);
    moe_case(l, &shapes[1], FORMAT_G_Q6_K);
    moe_case(l, &shapes[2], FORMAT_G_Q3_K);
    l->is_rest = true;
    moe_case_of(l, &shapes[0], FORMAT_G_Q5_K, true);
    l->is_rest = false;
    moe_case(l,
             &(struct moe_shape){7, 3, 192, 64, 0, FORMAT_G_MXFP4, 1, .ungated = true, .chooses = true,
                                 .biased = true, .gating = 1, .is_rest = true},
             FORMAT_G_MXFP4);
    l->is_rest = true;
    for (uint32_t tile = 1; tile <= EXPERTS_MAX_TILES; tile += kt_is_brief(l) ? EXPERTS_MAX_TILES - 1 : 1)
        moe_case(l, &(struct moe_shape){6, 2, 768, 512, 64, FORMAT_G_Q5_0 + tile, 110, .tile = tile},
                 FORMAT_G_IQ1_S);
    l->is_rest = false;
}

/* Experts whose gate and up have different formats, as in files with types chosen for each tensor. */
static void mixed_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 256, 128, 0, FORMAT_G_Q4_K, 1, .ungated = true, .gate = 1 + FORMAT_G_Q6_K},
        {7, 3, 192, 64, 0, FORMAT_Q4, 3, .ungated = true, .biased = true, .gating = 1, .gate = 1 + FORMAT_Q8},
        {12, 3, 256, 128, 64, FORMAT_G_Q8_0, 40, .gate = 1 + FORMAT_BF16},
        {12, 4, 256, 192, 64, FORMAT_G_IQ2_XXS, 2, .drops = true, .gate = 1 + FORMAT_G_IQ3_XXS,
         .is_rest = true},
        {6, 2, 256, 320, 0, FORMAT_Q8, 70, .ungated = true, .biased = true, .gate = 1 + FORMAT_Q4,
         .is_rest = true},
    };
    static const struct moe_shape joined[] = {
        {12, 3, 256, 128, 128, FORMAT_G_Q4_K, 1, .makes_shared = true, .chooses = true,
         .gate = 1 + FORMAT_G_Q6_K, .shared_up_format = FORMAT_G_Q4_K},
        {9, 2, 192, 64, 128, FORMAT_Q3, 2, .makes_shared = true, .chooses = true, .gate = 1 + FORMAT_Q6,
         .shared_up_format = FORMAT_Q4, .is_rest = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], FORMAT_Q8);
    for (size_t i = 0; kt_has_kernels(l) && i < sizeof joined / sizeof *joined; i++) {
        moe_case(l, &joined[i], FORMAT_Q8);
        l->is_rest = true;
        moe_case_of(l, &joined[i], FORMAT_Q8, true);
        l->is_rest = false;
    }
}

/* A part of each token's experts: those of the CPU, or the others. Tokens also have none in it. */
static void part_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 192, 64, 192, FORMAT_Q4, 1, .part = {6, true}},
        {12, 3, 192, 64, 64, FORMAT_Q8, 5, .part = {3, false}},
        {12, 4, 192, 64, 64, FORMAT_Q4, 40, .drops = true, .part = {7, true}},
        {12, 2, 192, 64, 0, FORMAT_MXFP4, 40, .ungated = true, .biased = true, .part = {6, false}},
        {7, 3, 192, 64, 0, FORMAT_Q4, 3, .ungated = true, .biased = true, .gating = 1, .part = {3, true}},
    };
    static const struct moe_shape with_shared[] = {
        {12, 4, 192, 64, 64, FORMAT_Q4, 2, .makes_shared = true, .shared_up_format = FORMAT_Q4,
         .part = {5, false}},
        {12, 3, 192, 128, 128, FORMAT_Q4, 70, .makes_shared = true, .shared_up_format = FORMAT_Q4,
         .part = {4, false}},
        {12, 3, 256, 256, 256, FORMAT_G_Q4_K, 1, .makes_shared = true, .gate = 1 + FORMAT_G_Q6_K,
         .shared_up_format = FORMAT_G_Q4_K, .part = {6, false}, .is_rest = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    for (size_t i = 0; kt_has_kernels(l) && i < sizeof with_shared / sizeof *with_shared; i++)
        moe_case(l, &with_shared[i], with_shared[i].format);
    if (kt_has_kernels(l))
        moe_case_of(l, &with_shared[0], FORMAT_Q4, true);
}

/* The paths of other cases with the sizes of Qwen's models and others. */
static void moe_sizes(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 8, 2048, 512, 512, FORMAT_Q4, 1, .tile = 0},
        {16, 16, 128, 320, 64, FORMAT_Q4, 2, .tile = 0},
        {16, 8, 2048, 768, 0, FORMAT_Q4, 1, .ungated = true},
        {9, 2, 128, 320, 0, FORMAT_Q8, 3, .ungated = true},
        {12, 8, 2048, 512, 512, FORMAT_Q4, 1, .drops = true},
        {16, 8, 2048, 512, 512, FORMAT_Q4, 2, .drops = true, .makes_shared = true,
         .shared_up_format = FORMAT_Q4},
    };
    for (size_t i = 0; !kt_is_brief(l) && i < sizeof shapes / sizeof *shapes; i++)
        if (kt_has_kernels(l) || !shapes[i].makes_shared)
            moe_case(l, &shapes[i], shapes[i].format);
}

/* Experts without a shared one that have biases, whose activations have a limit that some exceed, or GELU. */
static void biased_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {7, 3, 192, 64, 0, FORMAT_MXFP4, 1, .ungated = true, .chooses = true, .biased = true, .gating = 1},
        {7, 3, 192, 320, 0, FORMAT_Q4, 3, .ungated = true, .biased = true, .gating = 2, .is_rest = true},
        {12, 4, 128, 192, 0, FORMAT_MXFP4, 1, .ungated = true, .drops = true, .biased = true, .gating = 1,
         .is_rest = true},
        {5, 2, 192, 64, 0, FORMAT_Q4, 40, .ungated = true, .chooses = true, .biased = true, .gating = 1,
         .is_rest = true},
        {7, 3, 192, 64, 0, FORMAT_MXFP4, 70, .ungated = true, .biased = true, .gating = 1},
        {6, 2, 64, 64, 0, FORMAT_Q8, 2, .ungated = true, .biased = true, .is_rest = true},
        {6, 2, 64, 64, 0, FORMAT_Q8, 20, .ungated = true, .gating = 0.5f, .is_rest = true},
        {6, 3, 192, 64, 0, FORMAT_Q4, 1, .ungated = true, .gating = GATING_GELU},
        {6, 3, 192, 320, 0, FORMAT_Q8, 3, .ungated = true, .gating = GATING_GELU, .is_rest = true},
        {6, 3, 192, 64, 0, FORMAT_Q4, 70, .ungated = true, .gating = GATING_GELU},
        {7, 3, 192, 64, 64, FORMAT_Q4, 1, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU},
        {7, 3, 192, 64, 64, FORMAT_G_Q5_0, 3, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU},
        {7, 3, 192, 64, 64, FORMAT_BF16, 40, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU},
        {7, 3, 192, 64, 64, FORMAT_Q4, 70, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU},
    };
    static const struct moe_shape with_shared[] = {
        {7, 3, 192, 64, 192, FORMAT_Q4, 1, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {7, 3, 192, 320, 320, FORMAT_Q4, 70, .ungated = true, .gating = GATING_RELU,
         .shared_gating = GATING_RELU, .makes_shared = true, .shared_up_format = FORMAT_Q4},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    for (size_t i = 0; kt_has_kernels(l) && i < sizeof with_shared / sizeof *with_shared; i++)
        moe_case(l, &with_shared[i], with_shared[i].format);
    if (!kt_is_brief(l))
        moe_case(l,
                 &(struct moe_shape){32, 4, 2880, 2880, 0, FORMAT_MXFP4, 1, .ungated = true, .chooses = true,
                                     .biased = true, .gating = 7},
                 FORMAT_MXFP4);
}

/* Clamped activations, alike for the shared expert and not, that some exceed. */
static void clamped_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {12, 3, 192, 64, 192, FORMAT_Q4, 1, .ungated = true, .gating = -0.5f, .shared_gating = -0.25f},
        {12, 3, 192, 64, 64, FORMAT_Q4, 2, .ungated = true, .shared_gating = -0.5f, .makes_shared = true,
         .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .gating = -0.5f, .shared_gating = -0.5f,
         .makes_shared = true, .shared_up_format = FORMAT_Q4, .is_rest = true},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .gating = -0.5f, .shared_gating = -0.25f},
        {6, 2, 64, 64, 64, FORMAT_Q8, 20, .gating = -0.5f, .is_rest = true},
        {12, 3, 192, 64, 192, FORMAT_Q4, 1, .ungated = true, .gating = -0.5f * GATING_INPUTS,
         .shared_gating = -0.25f * GATING_INPUTS},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .gating = -0.5f * GATING_INPUTS,
         .shared_gating = -0.5f * GATING_INPUTS, .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .gating = -0.5f * GATING_INPUTS,
         .shared_gating = -0.25f * GATING_INPUTS},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (kt_has_kernels(l) || !shapes[i].makes_shared)
            moe_case(l, &shapes[i], shapes[i].format);
}

/* SiTU, with equal factors for the shared expert and without a bound of its up rows. */
static void situ_cases(struct kernel_test *l)
{
    const float both = gating_situ(4, 25), gate = gating_situ(0.5f, 0);
    const struct moe_shape shapes[] = {
        {12, 3, 192, 64, 192, FORMAT_MXFP4, 1, .ungated = true, .gating = both, .shared_gating = both},
        {12, 3, 192, 64, 64, FORMAT_Q4, 2, .ungated = true, .gating = both, .shared_gating = gate,
         .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .gating = gate, .shared_gating = gate,
         .makes_shared = true, .shared_up_format = FORMAT_Q4},
        {12, 3, 192, 64, 0, FORMAT_MXFP4, 70, .ungated = true, .gating = both},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (kt_has_kernels(l) || !shapes[i].makes_shared)
            moe_case(l, &shapes[i], shapes[i].format);
}

void selftest_experts_cases(struct kernel_test *l)
{
    static const struct moe_shape shapes[] = {
        {2, 1, 64, 64, 64, FORMAT_Q4, 1, .tile = 0},
        {12, 3, 192, 64, 192, FORMAT_Q4, 5, .tile = 0},
        {12, 4, 256, 64, 128, FORMAT_Q8, 2, .tile = 0, .is_rest = true},
        {12, 10, 512, 1024, 1024, FORMAT_Q4, 1, .tile = 0, .is_rest = true},
        {12, 3, 192, 64, 192, FORMAT_Q4, 70, .tile = 0},
        {5, 2, 128, 320, 64, FORMAT_Q8, 33, .tile = 0, .is_rest = true},
        {1, 1, 64, 64, 64, FORMAT_Q4, 17, .tile = 0},
        {12, 4, 256, 64, 128, FORMAT_Q4, 1, .ungated = true, .is_rest = true},
        {12, 3, 192, 64, 64, FORMAT_Q4, 40, .ungated = true, .is_rest = true},
        {12, 3, 192, 64, 0, FORMAT_Q4, 1, .ungated = true},
        {12, 3, 192, 64, 0, FORMAT_Q4, 70, .ungated = true, .is_rest = true},
        {12, 3, 192, 64, 192, FORMAT_Q4, 5, .drops = true, .is_rest = true},
        {16, 16, 128, 320, 64, FORMAT_Q4, 2, .drops = true, .is_rest = true},
        {12, 3, 192, 64, 0, FORMAT_Q8, 70, .ungated = true, .drops = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        moe_case(l, &shapes[i], shapes[i].format);
    /* Down projections with more bits than the others. */
    moe_case(l, &(struct moe_shape){12, 3, 192, 64, 192, FORMAT_Q4, 1, .tile = 0}, FORMAT_Q8);
    moe_case(l, &(struct moe_shape){9, 2, 320, 192, 64, FORMAT_Q4, 70, .is_rest = true}, FORMAT_Q8);
    moe_case_of(l, &(struct moe_shape){12, 3, 192, 64, 192, FORMAT_Q4, 1, .tile = 0}, FORMAT_Q4, true);
    moe_case_of(l, &(struct moe_shape){12, 4, 256, 64, 128, FORMAT_Q8, 3, .ungated = true}, FORMAT_Q8, true);
    moe_case_of(l, &(struct moe_shape){12, 3, 192, 64, 64, FORMAT_Q4, 40, .tile = 0, .is_rest = true},
                FORMAT_Q4, true);
    choosing_cases(l);
    biased_cases(l);
    part_cases(l);
    situ_cases(l);
    clamped_cases(l);
    moe_format_cases(l);
    moe_block_cases(l);
    mixed_cases(l);
    moe_sizes(l);
    /* Tiles of every size, whatever the number of tokens: experts without any, with some, with more than a
     * tile; rows of less than a tile's and of more; groups by the eight and others. */
    for (uint32_t tile = 1; kt_has_kernels(l) && tile <= EXPERTS_MAX_TILES; tile++) {
        l->is_rest = tile > 1;
        moe_case(l, &(struct moe_shape){12, 3, 192, 64, 64, FORMAT_Q4, 75, .tile = tile}, FORMAT_Q4);
        l->is_rest = true;
        moe_case(l, &(struct moe_shape){6, 2, 640, 384, 64, FORMAT_Q4, 110, .tile = tile}, FORMAT_Q4);
        if (kt_is_brief(l) && tile > 1)
            continue;
        moe_case(l, &(struct moe_shape){9, 2, 512, 192, 64, FORMAT_Q8, 37, .tile = tile}, FORMAT_Q8);
        moe_case(l, &(struct moe_shape){16, 1, 1024, 128, 64, FORMAT_Q4, 19, .ungated = true, .tile = tile},
                 FORMAT_Q4);
        moe_case(l, &(struct moe_shape){5, 1, 128, 576, 64, FORMAT_Q4, 150, .tile = tile}, FORMAT_Q4);
    }
    l->is_rest = false;
}
