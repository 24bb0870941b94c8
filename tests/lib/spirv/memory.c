/* Loads, stores and atomics, with every access checked. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "numbers.h"
#include "run.h"

/* --- buffers --- */

/* The number of buffers that begin at this address or before it. */
static size_t place_of(const struct spirv_memory *m, uint64_t address)
{
    size_t low = 0, high = m->n_buffers;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (m->buffers[mid].address <= address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool holds(const struct spirv_region *r, uint64_t address, uint64_t bytes)
{
    return address >= r->address && address - r->address <= r->bytes &&
           r->bytes - (address - r->address) >= bytes;
}

int spirv_memory_add(struct spirv_memory *m, uint64_t address, uint64_t bytes, struct moeflux_err *e)
{
    void *all = m->buffers;
    if (mem_grow(&all, &m->room, m->n_buffers + 1, sizeof *m->buffers, e) < 0)
        return ERR_MEMORY;
    m->buffers = all;
    struct spirv_region b = {.address = address, .bytes = bytes, .host = (uint8_t *)(uintptr_t)address};
    /* Words that nobody touches take no memory: the system gives pages of zeros. */
    b.words = mem_new(bytes / 4 + 2, sizeof *b.words, e);
    if (!b.words)
        return ERR_MEMORY;
    size_t i = place_of(m, address);
    memmove(m->buffers + i + 1, m->buffers + i, (m->n_buffers - i) * sizeof *m->buffers);
    m->buffers[i] = b;
    m->n_buffers++;
    return 0;
}

void spirv_memory_drop(struct spirv_memory *m, uint64_t address)
{
    size_t i = place_of(m, address);
    if (i == 0 || m->buffers[i - 1].address != address)
        return;
    free(m->buffers[i - 1].words);
    memmove(m->buffers + i - 1, m->buffers + i, (m->n_buffers - i) * sizeof *m->buffers);
    m->n_buffers--;
}

void spirv_memory_close(struct spirv_memory *m)
{
    for (size_t i = 0; i < m->n_buffers; i++)
        free(m->buffers[i].words);
    free(m->buffers);
    *m = (struct spirv_memory){0};
}

/* --- races --- */

static bool is_past(const struct spirv_access *a, uint32_t since)
{
    return a->epoch < since || a->epoch == 0;
}

/* Whether an access may be at the same time as one of this lane. */
static bool meets(const struct spirv_access *a, const struct spirv_access *now, uint32_t since)
{
    if (is_past(a, since))
        return false;
    return a->subgroup != now->subgroup || (a->sub_epoch == now->sub_epoch && a->lane != now->lane);
}

static void note(struct spirv_access *a, const struct spirv_access *now, uint32_t since)
{
    if (is_past(a, since) || (a->subgroup == now->subgroup && a->sub_epoch != now->sub_epoch))
        *a = *now;
    else if (a->subgroup != now->subgroup)
        a->subgroup = SPIRV_SEVERAL;
    else if (a->lane != now->lane)
        a->lane = SPIRV_SEVERAL;
}

static void report_race(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane,
                        const struct spirv_access *a, const char *what)
{
    if (a->subgroup == SPIRV_SEVERAL)
        spirv_fault(s, i, lane, "race: %s, and so do several subgroups", what);
    else if (a->lane == SPIRV_SEVERAL)
        spirv_fault(s, i, lane, "race: %s, and so do several lanes of subgroup %u", what, a->subgroup);
    else
        spirv_fault(s, i, lane, "race: %s, and lane %u of subgroup %u too", what, a->lane, a->subgroup);
}

/* Words that an access covers in whole. */
static void touch_words(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane,
                        const struct spirv_region *r, uint64_t off, uint32_t bytes)
{
    const struct spirv_memory *m = s->run->memory;
    uint32_t since = r->since ? m->epoch : m->buffer_epoch, subgroup = (s->first + lane) / s->size;
    bool is_store = i->use == SPIRV_WRITES;
    const struct spirv_access now = {.epoch = m->epoch,
                                     .subgroup = (uint16_t)subgroup,
                                     .lane = (uint16_t)(lane % s->size),
                                     .sub_epoch = s->epochs[lane / s->size]};
    if (is_store && bytes < 4)
        return;
    for (uint64_t k = off / 4; k <= (off + bytes - 1) / 4; k++) {
        struct spirv_word *w = &r->words[k];
        if (meets(&w->write, &now, since))
            report_race(s, i, lane, &w->write,
                        is_store ? "two lanes write a word" : "one lane reads a word that another writes");
        else if (is_store && meets(&w->read, &now, since))
            report_race(s, i, lane, &w->read, "one lane writes a word that another reads");
        note(is_store ? &w->write : &w->read, &now, since);
    }
}

/* Shared memory is written before it is read, in each workgroup. */
static void check_written(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t off,
                          uint32_t bytes)
{
    const struct spirv_memory *m = s->run->memory;
    for (uint64_t w = off / 4; w <= (off + bytes - 1) / 4; w++) {
        uint32_t *since = &m->shared.since[w];
        if (i->use != SPIRV_WRITES && *since < m->workgroup_epoch)
            spirv_fault(s, i, lane, "read of shared memory that nobody wrote, byte %u", (uint32_t)(4 * w));
        if (i->use != SPIRV_READS && *since < m->workgroup_epoch)
            *since = m->epoch;
    }
}

/* --- where an access is --- */

static void report_outside(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t place,
                           uint32_t bytes)
{
    const struct spirv_memory *m = s->run->memory;
    size_t at = place_of(m, place);
    uint64_t end = at ? m->buffers[at - 1].address + m->buffers[at - 1].bytes : 0;
    const char *what = i->use == SPIRV_READS ? "read" : "write", *where = "every buffer";
    if (i->storage != STORAGE_BUFFER) {
        end = i->storage == STORAGE_WORKGROUP ? m->shared.bytes : m->args.bytes;
        where = i->storage == STORAGE_WORKGROUP ? "shared memory" : "the arguments";
    }
    spirv_fault(s, i, lane, "%s of %u bytes outside of %s: %lld bytes from the end of what is before", what,
                bytes, where, (long long)(place - end));
}

/* The region that has all these bytes, or NULL. */
static struct spirv_region *find_region(struct spirv_memory *m, uint32_t storage, uint64_t place,
                                        uint32_t bytes)
{
    struct spirv_region *r = storage == STORAGE_WORKGROUP ? &m->shared : &m->args;
    if (storage != STORAGE_BUFFER)
        return holds(r, place, bytes) ? r : NULL;
    if (m->last < m->n_buffers && holds(&m->buffers[m->last], place, bytes))
        return &m->buffers[m->last];
    m->last = place_of(m, place) - 1; /* the largest number where there is none */
    return m->last < m->n_buffers && holds(&m->buffers[m->last], place, bytes) ? &m->buffers[m->last] : NULL;
}

/* The bytes of one lane's access, after all checks, or NULL: it is a fault, and reported. */
static uint8_t *locate(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t place,
                       uint32_t bytes)
{
    struct spirv_memory *m = s->run->memory;
    struct spirv_region *r = find_region(m, i->storage, place, bytes);
    if (!r) {
        report_outside(s, i, lane, place, bytes);
        return NULL;
    }
    uint64_t off = place - r->address;
    if (i->use == SPIRV_WRITES)
        r->written_by = m->dispatch;
    if (r->since)
        check_written(s, i, lane, off, bytes);
    if (r->words && i->use != SPIRV_ATOMIC && (m->records_reads || r->written_by == m->dispatch))
        touch_words(s, i, lane, r, off, bytes);
    return r->host + off;
}

/* Numbers of a lane's own variable, or NULL: a fault. */
static uint32_t *locate_own(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t place)
{
    if (place + i->n <= i->size)
        return spirv_slot(s, i->c + (uint32_t)place) + lane;
    spirv_fault(s, i, lane, "element %u of a variable of %u numbers", (uint32_t)place, i->size);
    return NULL;
}

uint64_t spirv_place(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane)
{
    const uint32_t *a = i->a == SPIRV_NO_SLOT ? NULL : spirv_slot(s, i->a);
    uint64_t high = i->storage == STORAGE_BUFFER ? (uint64_t)a[s->n + lane] << 32 : 0;
    return (a ? high | a[lane] : 0) + i->imm;
}

/* --- moving numbers --- */

/* Moves one number between memory and a register; most have four bytes. */
static inline void move_one(const struct spirv_insn *i, uint8_t *at, uint32_t *d, const uint32_t *operand)
{
    uint32_t number = *d, bytes = i->more & 255;
    bool is_half = i->more & SPIRV_IS_HALF;
    if (i->use == SPIRV_WRITES) {
        if (is_half)
            lane_math(MATH_HALF_BITS, 1, &number, d, d, d);
        bytes == 4 ? memcpy(at, &number, 4) : memcpy(at, &number, bytes);
        return;
    }
    number = 0;
    bytes == 4 ? memcpy(&number, at, 4) : memcpy(&number, at, bytes);
    *d = number;
    if (is_half)
        lane_math(MATH_BITS_HALF, 1, d, &number, &number, &number);
    if (i->use == SPIRV_ATOMIC) {
        lane_math(i->math, 1, &number, d, operand, operand);
        memcpy(at, &number, 4);
    }
}

void spirv_move(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t slot, uint32_t n,
                const uint64_t *places)
{
    uint8_t *at[SPIRV_MOST_LANES];
    bool is_own = i->storage == STORAGE_FUNCTION;
    uint32_t each = i->more & 255, align = i->storage == STORAGE_BUFFER ? i->more >> 16 : 1;
    size_t step = is_own ? 4 * s->n : each;
    for (uint32_t l = 0; l < s->n; l++) {
        if (!s->mask[l])
            continue;
        if (places[l] & (align - 1))
            spirv_fault(s, i, l, "an address that is no multiple of %u", align);
        at[l] = is_own ? (uint8_t *)locate_own(s, i, l, places[l]) : locate(s, i, l, places[l], n * each);
        if (!at[l])
            return;
    }
    const struct spirv_insn how = *i; /* a copy: no store changes it, as the compiler sees */
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t l = 0; l < s->n; l++)
            if (s->mask[l])
                move_one(&how, at[l] + k * step, spirv_slot(s, slot + k) + l, spirv_slot(s, i->b) + l);
}

void spirv_access(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint64_t places[SPIRV_MOST_LANES];
    uint32_t same, *here = spirv_slot(s, i->d), *own;
    if (i->storage == STORAGE_FUNCTION && spirv_is_uniform(s, spirv_slot(s, i->a), &same)) {
        own = locate_own(s, i, 0, (uint64_t)same + i->imm);
        if (own)
            spirv_put(s, i->use == SPIRV_WRITES ? own : here, i->use == SPIRV_WRITES ? here : own, i->n);
        return;
    }
    for (uint32_t l = 0; l < s->n; l++)
        places[l] = spirv_place(s, i, l);
    spirv_move(s, i, i->d, i->n, places);
}

void spirv_check(struct spirv_lanes *s, const struct spirv_insn *i)
{
    const uint32_t *idx = spirv_slot(s, i->a), n = s->n;
    uint32_t bad = 0;
    for (uint32_t l = 0; l < n; l++)
        bad |= idx[l] >= i->imm ? s->mask[l] : 0;
    for (uint32_t l = 0; bad && l < n; l++)
        if (s->mask[l] && idx[l] >= i->imm)
            spirv_fault(s, i, l, "element %u of an array of %u", idx[l], i->imm);
}
