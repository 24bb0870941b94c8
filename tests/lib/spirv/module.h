/* module.h - a SPIR-V module's words, looked up by id. Borrows the words. */
#ifndef MOEFLUX_TESTS_SPIRV_MODULE_H
#define MOEFLUX_TESTS_SPIRV_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

struct spirv_decoration_of {
    uint32_t id, member; /* member: UINT32_MAX for the id itself */
    uint32_t decoration, value;
};

struct spirv_module {
    const uint32_t *words;
    size_t n;
    uint32_t bound;
    uint32_t *at; /* [bound] the word that an id's instruction begins at; 0: there is none */
    struct spirv_decoration_of *decorations;
    size_t n_decorations, room;
    uint32_t size_at; /* the execution mode that has the workgroup's size; 0: none */
    uint32_t main_at; /* OpFunction */
};

/* Checks the lengths of all instructions; other rules are spirv-val's. ERR_FORMAT, ERR_MEMORY. */
int spirv_module_open(struct spirv_module *m, const uint32_t *words, size_t n, struct moeflux_err *e);
void spirv_module_close(struct spirv_module *m);

/* Returns false when the id, or its member, has no such decoration. */
bool spirv_decoration(const struct spirv_module *m, uint32_t id, uint32_t member, uint32_t decoration,
                      uint32_t *value);

static inline uint32_t spirv_op_at(const struct spirv_module *m, size_t at)
{
    return m->words[at] & 0xffff;
}
static inline uint32_t spirv_length_at(const struct spirv_module *m, size_t at)
{
    return m->words[at] >> 16;
}
/* The instruction of an id, from its first word on. */
static inline const uint32_t *spirv_def(const struct spirv_module *m, uint32_t id)
{
    return m->words + m->at[id];
}

#endif
