/* Loads, stores and atomics, with every access checked. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "lane_math.h"
#include "numbers.h"
#include "run.h"

/* --- buffers --- */

static size_t place_of(const struct spirv_memory *m, uint64_t address)
{
    size_t low = 0, high = m->n_buffers;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (m->buffers[mid]->address <= address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool holds(const struct spirv_buffer *b, uint64_t address, uint64_t bytes)
{
    return address >= b->address && address - b->address <= b->bytes &&
           b->bytes - (address - b->address) >= bytes;
}

static struct spirv_buffer *find_buffer(struct spirv_memory *m, uint64_t address, uint64_t bytes)
{
    if (m->last && holds(m->last, address, bytes))
        return m->last;
    size_t i = place_of(m, address);
    if (i == 0 || !holds(m->buffers[i - 1], address, bytes))
        return NULL;
    return m->last = m->buffers[i - 1];
}

int spirv_memory_add(struct spirv_memory *m, uint64_t address, uint64_t bytes, struct moeflux_err *e)
{
    void *all = m->buffers;
    struct spirv_buffer *b = mem_new(1, sizeof *b, e);
    if (!b || mem_grow(&all, &m->room, m->n_buffers + 1, sizeof(struct spirv_buffer *), e) < 0) {
        free(b);
        return ERR_MEMORY;
    }
    m->buffers = all;
    /* Words that nobody touches take no memory: the system gives pages of zeros. */
    *b = (struct spirv_buffer){address, bytes, calloc(bytes / 4 + 2, sizeof(struct spirv_word)), 0};
    if (!b->words) {
        free(b);
        return err_set(e, ERR_MEMORY, "out of memory");
    }
    size_t i = place_of(m, address);
    memmove(m->buffers + i + 1, m->buffers + i, (m->n_buffers - i) * sizeof *m->buffers);
    m->buffers[i] = b;
    m->n_buffers++;
    return 0;
}

static void free_buffer(struct spirv_buffer *b)
{
    free(b->words);
    free(b);
}

void spirv_memory_drop(struct spirv_memory *m, uint64_t address)
{
    size_t i = place_of(m, address);
    m->last = NULL;
    if (i == 0 || m->buffers[i - 1]->address != address)
        return;
    free_buffer(m->buffers[i - 1]);
    m->n_buffers--;
    memmove(m->buffers + i - 1, m->buffers + i, (m->n_buffers - i + 1) * sizeof *m->buffers);
}

void spirv_memory_close(struct spirv_memory *m)
{
    for (size_t i = 0; i < m->n_buffers; i++)
        free_buffer(m->buffers[i]);
    free(m->buffers);
    free(m->shared);
    free(m->shared_words);
    free(m->shared_since);
    *m = (struct spirv_memory){0};
}

/* --- time --- */

int spirv_memory_begin(struct spirv_memory *m, uint32_t shared_bytes, struct moeflux_err *e)
{
    m->dispatch++;
    if (shared_bytes > m->shared_bytes || !m->shared) {
        size_t words = shared_bytes / 4 + 2;
        free(m->shared);
        free(m->shared_words);
        free(m->shared_since);
        m->shared = mem_new(words, 4, e);
        m->shared_words = mem_new(words, sizeof *m->shared_words, e);
        m->shared_since = mem_new(words, sizeof *m->shared_since, e);
        if (!m->shared || !m->shared_words || !m->shared_since)
            return ERR_MEMORY;
    }
    m->shared_bytes = shared_bytes;
    return 0;
}

void spirv_memory_begin_workgroup(struct spirv_memory *m, bool is_first)
{
    m->workgroup_epoch = m->buffer_epoch = ++m->epoch;
    m->records_reads = is_first;
}

void spirv_memory_barrier_passed(struct spirv_memory *m, bool orders_buffers)
{
    m->epoch++;
    if (orders_buffers)
        m->buffer_epoch = m->epoch;
}

/* --- races --- */

/* Whether an access may be at the same time as one of this lane. */
static bool meets(const struct spirv_access *a, const struct spirv_access *now, uint32_t since)
{
    if (a->epoch < since || a->epoch == 0)
        return false;
    return a->subgroup != now->subgroup || (a->sub_epoch == now->sub_epoch && a->lane != now->lane);
}

static void note(struct spirv_access *a, const struct spirv_access *now, uint32_t since)
{
    bool is_new = a->epoch < since || a->epoch == 0;
    bool is_same = !is_new && a->subgroup == now->subgroup;
    if (is_new || (is_same && a->sub_epoch != now->sub_epoch))
        *a = *now;
    else if (!is_same)
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
                        struct spirv_word *words, uint64_t at, uint32_t bytes, bool is_store, uint32_t since)
{
    uint32_t subgroup = (s->first + lane) / s->size;
    const struct spirv_access now = {.epoch = s->run->memory->epoch,
                                     .subgroup = (uint16_t)subgroup,
                                     .lane = (uint16_t)(lane % s->size),
                                     .sub_epoch = s->epochs[lane / s->size]};
    if (is_store && bytes < 4)
        return;
    for (uint64_t k = at / 4; k <= (at + bytes - 1) / 4; k++) {
        struct spirv_word *w = &words[k];
        if (meets(&w->write, &now, since))
            report_race(s, i, lane, &w->write,
                        is_store ? "two lanes write a word" : "one lane reads a word that another writes");
        else if (is_store && meets(&w->read, &now, since))
            report_race(s, i, lane, &w->read, "one lane writes a word that another reads");
        note(is_store ? &w->write : &w->read, &now, since);
    }
}

/* --- where an access is --- */

static uint8_t *buffer_at(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t address,
                          uint32_t bytes, enum spirv_use use)
{
    struct spirv_memory *m = s->run->memory;
    struct spirv_buffer *b = find_buffer(m, address, bytes);
    if (!b) {
        size_t at = place_of(m, address);
        uint64_t end = at ? m->buffers[at - 1]->address + m->buffers[at - 1]->bytes : 0;
        spirv_fault(s, i, lane,
                    "%s of %u bytes outside of every buffer: %lld bytes from the end of the one before",
                    use == SPIRV_READS ? "read" : "write", bytes, (long long)(address - end));
        return NULL;
    }
    if (use == SPIRV_WRITES)
        b->written_by = m->dispatch;
    if (use == SPIRV_WRITES || (use == SPIRV_READS && (m->records_reads || b->written_by == m->dispatch)))
        touch_words(s, i, lane, b->words, address - b->address, bytes, use == SPIRV_WRITES, m->buffer_epoch);
    return (uint8_t *)(uintptr_t)address;
}

static uint8_t *shared_at(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t at,
                          uint32_t bytes, enum spirv_use use)
{
    struct spirv_memory *m = s->run->memory;
    if (at > m->shared_bytes || bytes > m->shared_bytes - at) {
        spirv_fault(s, i, lane, "access to byte %u of %u bytes of shared memory", (uint32_t)at,
                    m->shared_bytes);
        return NULL;
    }
    for (uint64_t w = at / 4; w <= (at + bytes - 1) / 4; w++) {
        if (use != SPIRV_READS && m->shared_since[w] < m->workgroup_epoch)
            m->shared_since[w] = m->epoch;
        if (use != SPIRV_WRITES && m->shared_since[w] < m->workgroup_epoch)
            spirv_fault(s, i, lane, "read of shared memory that nobody wrote, byte %u", (uint32_t)(4 * w));
    }
    if (use != SPIRV_ATOMIC)
        touch_words(s, i, lane, m->shared_words, at, bytes, use == SPIRV_WRITES, m->epoch);
    return m->shared + at;
}

uint64_t spirv_place(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane)
{
    const uint32_t *a = i->a == SPIRV_NO_SLOT ? NULL : spirv_slot(s, i->a);
    uint64_t high = i->storage == STORAGE_BUFFER ? (uint64_t)a[s->n + lane] << 32 : 0;
    return (a ? high | a[lane] : 0) + i->imm;
}

uint8_t *spirv_at(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t place,
                  uint32_t bytes, enum spirv_use use)
{
    if (i->storage == STORAGE_BUFFER)
        return buffer_at(s, i, lane, place, bytes, use);
    if (i->storage == STORAGE_WORKGROUP)
        return shared_at(s, i, lane, place, bytes, use);
    if (place <= s->run->args_bytes && bytes <= s->run->args_bytes - place)
        return (uint8_t *)(uintptr_t)s->run->args + place;
    spirv_fault(s, i, lane, "read of byte %u of %u bytes of arguments", (uint32_t)place, s->run->args_bytes);
    return NULL;
}

/* The bytes of all active lanes. False: there was a fault. */
static bool locate(struct spirv_lanes *s, const struct spirv_insn *i, enum spirv_use use,
                   uint8_t *at[SPIRV_MOST_LANES])
{
    uint32_t bytes = i->n * (i->more & 255), align = i->storage == STORAGE_BUFFER ? i->more >> 16 : 1;
    for (uint32_t l = 0; l < s->n; l++) {
        if (!s->mask[l])
            continue;
        uint64_t place = spirv_place(s, i, l);
        if (place % align)
            spirv_fault(s, i, l, "an address that is no multiple of %u", align);
        if (!(at[l] = spirv_at(s, i, l, place, bytes, use)))
            return false;
    }
    return true;
}

/* --- moving numbers --- */

uint32_t spirv_get(const uint8_t *at, uint32_t more)
{
    uint32_t number = 0, value;
    if ((more & 255) == 4)
        memcpy(&number, at, 4);
    else
        memcpy(&number, at, more & 255);
    return more & SPIRV_IS_HALF && lane_math(MATH_BITS_HALF, 1, &value, &number, &number, &number) ? value
                                                                                                   : number;
}

void spirv_set(uint8_t *at, uint32_t more, uint32_t value)
{
    uint32_t number = value;
    if (more & SPIRV_IS_HALF)
        lane_math(MATH_HALF_BITS, 1, &number, &value, &value, &value);
    memcpy(at, &number, more & 255);
}

/* A variable of the lane's own: all lanes at the same place, or each at its own. */
static void access_private(struct spirv_lanes *s, const struct spirv_insn *i, bool is_store)
{
    const uint32_t *offsets = spirv_slot(s, i->a);
    uint32_t before = i->b - i->c, first = 0, differ = 0;
    while (!s->mask[first])
        first++;
    for (uint32_t l = 0; l < s->n; l++)
        differ |= (offsets[l] ^ offsets[first]) & s->mask[l];
    for (uint32_t l = first; l < (differ ? s->n : first + 1); l++) {
        if (!s->mask[l])
            continue;
        if (offsets[l] > i->more || before + offsets[l] + i->n > i->more) {
            spirv_fault(s, i, l, "element %u of a variable of %u numbers", before + offsets[l], i->more);
            return;
        }
        for (uint32_t k = 0; differ && k < i->n; k++) {
            uint32_t *there = spirv_slot(s, i->b + offsets[l] + k), *here = spirv_slot(s, i->d + k);
            *(is_store ? there + l : here + l) = is_store ? here[l] : there[l];
        }
    }
    uint32_t *here = spirv_slot(s, i->d), *there = spirv_slot(s, i->b + (differ ? 0 : offsets[first]));
    if (!differ)
        spirv_put(s, is_store ? there : here, is_store ? here : there, i->n);
}

void spirv_load(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint8_t *at[SPIRV_MOST_LANES];
    if (i->storage == STORAGE_FUNCTION) {
        access_private(s, i, false);
        return;
    }
    bool is_there = locate(s, i, SPIRV_READS, at);
    for (uint32_t k = 0; k < i->n && is_there; k++) {
        uint32_t *d = spirv_slot(s, i->d + k), each = i->more & 255;
        for (uint32_t l = 0; l < s->n; l++)
            if (s->mask[l])
                d[l] = spirv_get(at[l] + each * k, i->more);
    }
}

void spirv_store(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint8_t *at[SPIRV_MOST_LANES];
    if (i->storage == STORAGE_FUNCTION) {
        access_private(s, i, true);
        return;
    }
    bool is_there = locate(s, i, SPIRV_WRITES, at);
    for (uint32_t k = 0; k < i->n && is_there; k++) {
        const uint32_t *d = spirv_slot(s, i->d + k), each = i->more & 255;
        for (uint32_t l = 0; l < s->n; l++)
            if (s->mask[l])
                spirv_set(at[l] + each * k, i->more, d[l]);
    }
}

void spirv_atomic(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d), after;
    const uint32_t *operand = spirv_slot(s, i->b);
    for (uint32_t l = 0; l < s->n; l++) {
        uint8_t *at = s->mask[l] ? spirv_at(s, i, l, spirv_place(s, i, l), 4, SPIRV_ATOMIC) : NULL;
        if (!at)
            continue;
        memcpy(&d[l], at, 4);
        lane_math(i->math, 1, &after, &d[l], &operand[l], &operand[l]);
        memcpy(at, &after, 4);
    }
}

void spirv_index(struct spirv_lanes *s, const struct spirv_insn *i)
{
    const uint32_t *idx = spirv_slot(s, i->a), *before = spirv_slot(s, i->b == SPIRV_NO_SLOT ? i->a : i->b);
    uint32_t *restrict d = spirv_slot(s, i->d);
    const uint32_t n = s->n, end = i->more ? i->more : UINT32_MAX, stride = i->imm,
                   added = i->b == SPIRV_NO_SLOT ? 0 : UINT32_MAX;
    uint32_t bad = 0;
    for (uint32_t l = 0; l < n; l++) {
        bad |= idx[l] >= end ? s->mask[l] : 0;
        d[l] = (d[l] & ~s->mask[l]) | ((idx[l] * stride + (before[l] & added)) & s->mask[l]);
    }
    for (uint32_t l = 0; bad && l < n; l++)
        if (s->mask[l] && idx[l] >= end)
            spirv_fault(s, i, l, "element %u of an array of %u", idx[l], i->more);
}
