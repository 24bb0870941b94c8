#include "ops/experts_few.h"

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "ops/experts.h"
#include "ops/gemv_plan.h"

/* The constants of few.glsl behind those of gemv.glsl. */
enum { FEW_LANES = EXPERTS_FIRST_SPEC, FEW_TURNS, FEW_N_SPEC };
/* The most vectors; invocations of a workgroup; rows of all matrices that a lane has at once. */
enum { MOST_TOKENS = 4, GROUP = 128, LANE_ROWS = 4 };
/* Workgroups that share an expert's rows, and the blocks of rows that each takes at most: the more, the fewer times the
 * vectors are loaded; the fewer, the less does a GPU wait for the last ones. */
enum { SHARES = 8, MOST_TURNS = 8 };

/* Products with matrices of rows x cols. */
struct few {
    uint32_t spec[FEW_N_SPEC];
    uint32_t rows; /* of a workgroup */
};

/* Bytes of shared memory that a vector takes: kernels/lib/gemv_lanes.glsl, XS_STRIDE. */
static uint64_t vector_bytes(uint32_t cols)
{
    return 128 * ((uint64_t)cols / 32 + 1);
}

/* Vectors of so many columns that fit; a power of two, or 0. */
static uint32_t tokens_for(const struct exec_caps *c, uint32_t cols)
{
    enum { OTHERS = 1024 };
    uint32_t tokens = MOST_TOKENS;
    while (tokens > 0 && tokens * vector_bytes(cols) + OTHERS > c->max_shared_bytes)
        tokens /= 2;
    return tokens;
}

static struct few plan(const struct exec_caps *c, uint32_t format, uint32_t rows, uint32_t cols,
                       uint32_t matrices, uint32_t tokens)
{
    uint32_t subgroup = c->subgroup_size, subgroups = (uint32_t)size_max(1, GROUP / subgroup), lanes = 1;
    uint32_t pieces = cols / gemv_piece_cols(format), lane_rows = LANE_ROWS / matrices;
    while (2 * lanes <= subgroup && pieces % (2 * lanes) == 0)
        lanes *= 2;
    uint32_t turn_rows = subgroups * (subgroup / lanes) * lane_rows;
    uint32_t turns = (uint32_t)size_min(MOST_TURNS, div_up(rows, SHARES * turn_rows));
    return (struct few){.spec = {[GEMV_SUBGROUP] = subgroup,
                                 [GEMV_WORKGROUP] = subgroups * subgroup,
                                 [GEMV_ROWS] = lane_rows,
                                 [GEMV_TOKENS] = tokens,
                                 [GEMV_TILE] = cols,
                                 [GEMV_FORMATS] = format_constant(format_set(format)),
                                 [GEMV_SPLIT] = 1,
                                 [GEMV_STEPS] = 0,
                                 [FEW_LANES] = lanes,
                                 [FEW_TURNS] = turns},
                        .rows = turns * turn_rows};
}

int experts_few_open(struct experts_tiles *t, struct exec *x, const struct experts_shape *s,
                     struct moeflux_err *e)
{
    const struct exec_caps c = exec_get_caps(x);
    uint32_t tokens = tokens_for(&c, (uint32_t)size_max(s->hidden, s->inner));
    bool suits = tokens > 1 && c.max_workgroup >= GROUP && format_is_usual(s->up_format) &&
                 format_is_usual(s->down_format);
    *t = (struct experts_tiles){.tokens = suits ? tokens : 0};
    if (!suits)
        return 0;
    const struct few up = plan(&c, s->up_format, s->inner, s->hidden, 2, tokens),
                     down = plan(&c, s->down_format, s->hidden, s->inner, 1, tokens);
    t->up_rows = up.rows;
    t->down_rows = down.rows;
    int rc = gemv_kernel_later(x, &t->up, "experts_few_up", sizeof(struct experts_prefill_up_args), up.spec,
                               FEW_N_SPEC, e);
    return rc < 0 ? rc
                  : gemv_kernel_later(x, &t->down, "experts_few_down",
                                      sizeof(struct experts_prefill_down_args), down.spec, FEW_N_SPEC, e);
}
