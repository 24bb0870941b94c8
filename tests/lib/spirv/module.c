/* Reads a SPIR-V module once: where each id is defined, decorations, the workgroup's size. */
#include "module.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "numbers.h"

/* Instructions that define an id: 2 where its type precedes it, 1 where it has none, else 0. */
static uint32_t result_at(uint32_t op)
{
    if ((op >= OP_TYPE_VOID && op <= OP_TYPE_FUNCTION) || op == OP_LABEL || op == OP_KHR_MATRIX_TYPE ||
        op == OP_NV_MATRIX_TYPE)
        return 1;
    bool has_none = op < OP_EXT_INST || (op > OP_EXT_INST && op < OP_TYPE_VOID) ||
                    op == OP_TYPE_FORWARD_POINTER || op == OP_FUNCTION_END || op == OP_STORE ||
                    op == OP_DECORATE || op == OP_MEMBER_DECORATE || op == OP_CONTROL_BARRIER ||
                    op == OP_MEMORY_BARRIER || (op >= OP_LOOP_MERGE && op <= OP_UNREACHABLE) ||
                    op == OP_EXECUTION_MODE_ID || op == OP_KHR_MATRIX_STORE || op == OP_NV_MATRIX_STORE;
    return op == OP_UNDEF || !has_none ? 2 : 0;
}

static int add_decoration(struct spirv_module *m, const struct spirv_decoration_of *d, struct moeflux_err *e)
{
    void *all = m->decorations;
    int rc = mem_grow(&all, &m->room, m->n_decorations + 1, sizeof *m->decorations, e);
    m->decorations = all;
    if (rc == 0)
        m->decorations[m->n_decorations++] = *d;
    return rc;
}

static int learn(struct spirv_module *m, uint32_t at, uint32_t n, struct moeflux_err *e)
{
    const uint32_t *in = m->words + at;
    uint32_t op = in[0] & 0xffff, result = result_at(op);
    if (result && (n <= result || in[result] == 0 || in[result] >= m->bound))
        return err_set(e, ERR_FORMAT, "SPIR-V word %u: no id below %u", at, m->bound);
    if (result)
        m->at[in[result]] = at;
    if (op == OP_DECORATE && n >= 3)
        return add_decoration(m, &(struct spirv_decoration_of){in[1], UINT32_MAX, in[2], n > 3 ? in[3] : 0},
                              e);
    if (op == OP_MEMBER_DECORATE && n >= 4)
        return add_decoration(m, &(struct spirv_decoration_of){in[1], in[2], in[3], n > 4 ? in[4] : 0}, e);
    if ((op == OP_EXECUTION_MODE && in[2] == MODE_LOCAL_SIZE) ||
        (op == OP_EXECUTION_MODE_ID && in[2] == MODE_LOCAL_SIZE_ID))
        m->size_at = at;
    if (op == OP_FUNCTION && m->main_at)
        return err_set(e, ERR_FORMAT, "SPIR-V word %u: a second function; expected optimised code", at);
    if (op == OP_FUNCTION)
        m->main_at = at;
    return 0;
}

int spirv_module_open(struct spirv_module *m, const uint32_t *words, size_t n, struct moeflux_err *e)
{
    enum { MOST_IDS = 1 << 20 };
    *m = (struct spirv_module){.words = words, .n = n};
    if (n < SPIRV_HEADER_WORDS || words[0] != SPIRV_MAGIC || words[SPIRV_BOUND_WORD] > MOST_IDS)
        return err_set(e, ERR_FORMAT, "not SPIR-V");
    m->bound = words[SPIRV_BOUND_WORD];
    m->at = mem_new(m->bound, sizeof *m->at, e);
    int rc = m->at ? 0 : ERR_MEMORY;
    for (size_t at = SPIRV_HEADER_WORDS, length; rc == 0 && at < n; at += length) {
        length = words[at] >> 16;
        if (length == 0 || length > n - at)
            rc = err_set(e, ERR_FORMAT, "SPIR-V word %zu: an instruction of %zu words", at, length);
        else
            rc = learn(m, (uint32_t)at, (uint32_t)length, e);
    }
    if (rc == 0 && (!m->main_at || !m->size_at))
        rc = err_set(e, ERR_FORMAT, "SPIR-V without a function or a workgroup's size");
    if (rc < 0)
        spirv_module_close(m);
    return rc;
}

void spirv_module_close(struct spirv_module *m)
{
    free(m->at);
    free(m->decorations);
    *m = (struct spirv_module){0};
}

bool spirv_decoration(const struct spirv_module *m, uint32_t id, uint32_t member, uint32_t decoration,
                      uint32_t *value)
{
    for (size_t i = 0; i < m->n_decorations; i++) {
        const struct spirv_decoration_of *d = &m->decorations[i];
        if (d->id == id && d->member == member && d->decoration == decoration) {
            *value = d->value;
            return true;
        }
    }
    return false;
}
