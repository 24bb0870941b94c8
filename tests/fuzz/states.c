/* Saved states of small models. */
#include <string.h>
#include <xxhash.h>

#include "base/str.h"
#include "fuzz/target.h"
#include "sequence.h"
#include "small_model.h"

enum { CONTEXT = 64, HEADER_3 = 80 };

/* Makes the checksums right, so that mutations reach the code past these checks. */
static void repair_checksums(uint8_t *file, uint64_t n)
{
    if (n < HEADER_3 + 8)
        return;
    memcpy(file + HEADER_3 - 16, &n, sizeof n);
    uint64_t check = XXH3_64bits(file, HEADER_3 - 8);
    memcpy(file + HEADER_3 - 8, &check, sizeof check);
    check = XXH3_64bits(file, n - 8);
    memcpy(file + n - 8, &check, sizeof check);
}

/* An empty session is filled itself, another one by a second session. */
static void start_at(struct sequence *q, uint32_t n)
{
    static const int32_t ids[] = {11, 12};
    struct moeflux_err e = {0};
    target_need(moeflux_session_clear(q->s, &e) == 0, "a session that cannot be cleared");
    if (n)
        sequence_eval(q, ids, n, NULL);
}

/* The first byte that says which model loads the file, whose checksums are then made right. */
static const struct reader {
    uint8_t mark;
    const char *dir; /* NULL: the small model */
    enum moeflux_kv_type type;
} readers[] = {
    {'#', NULL, MOEFLUX_KV_TYPE_F32},
    {'q', NULL, MOEFLUX_KV_TYPE_Q8_0},
    {'l', "tests/models/deepseek-lone/mlx", MOEFLUX_KV_TYPE_Q8_0}, /* latents: version 4 */
};
enum { N_READERS = sizeof readers / sizeof *readers };

/* Returns the session that a first byte names. If it names none, the byte is the file's and is_mark false. */
static struct sequence *reader_of(uint8_t first, bool *is_mark)
{
    static struct sequence open[N_READERS];
    static const char *small;
    size_t i = 0;
    while (i < N_READERS && readers[i].mark != first)
        i++;
    *is_mark = i < N_READERS;
    const struct reader *r = &readers[*is_mark ? i : 0];
    struct sequence *q = &open[r - readers];
    if (!small)
        small = small_model_make(target_new_dir("snapshot"), 1);
    if (!q->m)
        *q = sequence_open_kv(r->dir ? r->dir : small, "reference", r->type, 0, 0, CONTEXT);
    return q;
}

void target_snapshot(const uint8_t *data, size_t n)
{
    static struct str file;
    struct moeflux_err e = {0};
    struct moeflux_state_info info;
    bool repair;
    struct sequence *q = reader_of(n > 0 ? data[0] : 0, &repair);
    str_clear(&file);
    str_add(&file, (const char *)data + repair, n - repair);
    if (repair)
        repair_checksums((uint8_t *)file.data, file.len);
    const char *path = target_file((const uint8_t *)file.data, file.len);
    int told = target_answered(moeflux_read_state_info(path, &info, &e), &e);
    /* Evaluating takes a hundred times as long as reading. */
    bool thorough = XXH3_64bits(data, n) % 256 == 0;
    uint32_t before = thorough ? 2 : 0;
    if (moeflux_session_position(q->s) != before)
        start_at(q, before);
    if (!target_answered(moeflux_session_load(q->s, path, &e), &e)) {
        target_need(moeflux_session_position(q->s) == before, "a refused state that moved the session");
        return;
    }
    target_need(told && moeflux_session_position(q->s) <= CONTEXT, "a state beyond the context");
    int32_t id = 3;
    if (thorough && moeflux_session_position(q->s) < CONTEXT)
        target_answered(moeflux_session_eval(q->s, &id, 1, &(struct moeflux_outputs){0}, &e), &e);
}
