/* Files of states: what they hold, and what is refused. All on a small model.
 *
 * suites: gpu vulkan cpu fast long asan-nightly */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "check.h"
#include "device.h"
#include "engine/sequence.h"
#include "engine/test_hooks.h"
#include "fuzz.h"
#include "sequence.h"
#include "small_model.h"
#include "snapshot_writer.h"
#include "tmp_tree.h"

enum { CONTEXT = 640 };

struct place {
    char *dir;
    const char *model, *file;
    struct sequence q;
};

/* The reference backend: nothing here depends on the device, and it has no threads that a fork would lose. */
static struct place place_open(const char *device)
{
    struct place p = {.dir = tmp_tree_new()};
    p.model = small_model_make(p.dir, 1);
    p.file = tmp_tree_path(p.dir, "state");
    p.q = sequence_open(p.model, device, 0, 0, CONTEXT);
    return p;
}

static void place_close(struct place *p)
{
    sequence_close(&p->q);
    tmp_tree_remove(p->dir);
}

static void go_on(struct place *p, float *logits)
{
    const int32_t ids[] = {9, 8, 7};
    sequence_eval(&p->q, ids, 3, logits);
}

static void save(struct place *p, enum moeflux_state_format format)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_save(p->q.s, p->file, format, &e), &e);
}

static void write_file(const struct place *p, const void *bytes, size_t n)
{
    tmp_tree_write(p->dir, "state", bytes, n);
}

/* ---- versions 1 and 2 ---- */

static void written_files_load_with(const char *device)
{
    struct place p = place_open(device);
    struct str one = {0}, two = {0};
    struct moeflux_err e = {0};
    float logits[3][SMALL_VOCAB];
    static const int32_t lengths[] = {0, 1, 5, 255, 256, 257, 600};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int32_t n = lengths[i];
        snapshot_write(&one, 1, n, NULL);
        snapshot_write(&two, 2, n, NULL);
        for (uint32_t version = 1; version <= 2; version++) {
            const struct str *file = version == 1 ? &one : &two;
            write_file(&p, file->data, file->len);
            check_ok(moeflux_session_load(p.q.s, p.file, &e), &e);
            assert_int_equal(moeflux_session_position(p.q.s), n);
            assert_true(n == 0 || moeflux_session_history(p.q.s)[n - 1] == -1);
            /* What went in comes out. */
            save(&p, MOEFLUX_STATE_V2);
            size_t back_bytes;
            uint8_t *back = tmp_tree_read(p.file, &back_bytes);
            assert_int_equal(back_bytes, two.len);
            assert_memory_equal(back, two.data, two.len);
            free(back);
            go_on(&p, logits[version]);
        }
        assert_memory_equal(logits[1], logits[2], sizeof logits[1]);
        assert_true(i == 0 || sequence_distance(&p.q, logits[0], logits[1]) > 1e-3f);
        memcpy(logits[0], logits[1], sizeof logits[0]);
    }
    str_free(&one);
    str_free(&two);
    place_close(&p);
}

static void written_files_load(void **state)
{
    (void)state;
    written_files_load_with("reference");
    written_files_load_with(NULL);
}

static const float *layer_of(const uint8_t *file, uint32_t layer, uint32_t n)
{
    size_t pair = 4 * (SMALL_WINDOW + SMALL_S) + 4 + 4 * (size_t)2 * n * SMALL_KV_HEADS * SMALL_HEAD_DIM;
    size_t off = 40 + layer / 2 * pair + (layer % 2 ? 4 * (SMALL_WINDOW + SMALL_S) + 4 : 0);
    return (const float *)(const void *)(file + off);
}

/* Rows stand in the order of positions, and the window's oldest first: a longer
 * sequence appends and shifts. */
static void a_longer_state_continues_a_shorter_one(void **state)
{
    (void)state;
    enum { N = 6, ROW = SMALL_KV_HEADS * SMALL_HEAD_DIM, TAP = SMALL_WINDOW / 3 };
    struct place p = place_open("reference");
    const int32_t ids[N + 1] = {3, 1, 4, 1, 5, 9, 2};
    uint8_t *file[2];
    for (uint32_t i = 0; i < 2; i++) {
        sequence_fresh(&p.q, NULL, 0, ids, N + i, NULL);
        save(&p, MOEFLUX_STATE_V2);
        file[i] = tmp_tree_read(p.file, NULL);
    }
    for (uint32_t layer = 0; layer < SMALL_LAYERS; layer++) {
        const float *a = layer_of(file[0], layer, N), *b = layer_of(file[1], layer, N + 1);
        if (layer % 2) { /* keys, values */
            assert_memory_equal(a, b, sizeof(float[N * ROW]));
            assert_memory_equal(a + N * ROW, b + (N + 1) * ROW, sizeof(float[N * ROW]));
        } else {
            assert_memory_equal(a + TAP, b, sizeof(float[2 * TAP]));
            assert_memory_not_equal(a + TAP, b + TAP, sizeof(float[TAP]));
        }
    }
    free(file[0]);
    free(file[1]);
    place_close(&p);
}

/* Rows of latents and rotary keys stand side by side in the cache and apart in a file. Here the halves of the
 * keys play them; the values stay where they are. */
static void rows_side_by_side_are_distinguished(void **state)
{
    (void)state;
    enum { N = 300, HALF = SMALL_KV_HEADS * SMALL_HEAD_DIM / 2 };
    static const enum moeflux_kv_type formats[] = {MOEFLUX_KV_TYPE_F32, MOEFLUX_KV_TYPE_F16};
    for (uint32_t i = 0; i < 4; i++) {
        struct place p = {.dir = tmp_tree_new(), .q.vocab = SMALL_VOCAB};
        const struct moeflux_options o = {.dir = small_model_make(p.dir, 1),
                                          .device = i < 2 ? "reference" : getenv("MOEFLUX_DEVICE"),
                                          .kv_type = formats[i % 2]};
        struct moeflux_err e = {0};
        struct arch_stores stores[SMALL_LAYERS];
        int32_t ids[N + 3];
        float want[SMALL_VOCAB], got[SMALL_VOCAB];
        uint8_t *whole, *halves;
        p.file = tmp_tree_path(p.dir, "state");
        check_ok(
            test_hooks_open(&p.q.m, &o, &(struct test_hooks){.staged = i >= 2, .shelf = device_shelf()}, &e),
            &e);
        check_ok(moeflux_session_new(&p.q.s, p.q.m, CONTEXT, &e), &e);
        sequence_ids(&p.q, 0, ids, N + 3);
        sequence_fresh(&p.q, ids, N, ids + N, 3, want);
        sequence_fresh(&p.q, NULL, 0, ids, N, NULL);
        save(&p, MOEFLUX_STATE_V2);
        whole = tmp_tree_read(p.file, NULL);
        const struct arch_stores *real = p.q.m->stages[0].view.stores;
        memcpy(stores, real, sizeof stores);
        for (uint32_t layer = 1; layer < SMALL_LAYERS; layer += 2) {
            struct arch_store *rows = stores[layer].of;
            rows[1] = rows[0];
            rows[0].width = rows[1].width = HALF;
            rows[0].head = rows[1].head = HALF;
            rows[1].off += rows[0].pitch / 2;
        }
        p.q.m->stages[0].view.stores = stores;
        save(&p, MOEFLUX_STATE_V2);
        halves = tmp_tree_read(p.file, NULL);
        const float *keys = layer_of(whole, 1, N), *first = layer_of(halves, 1, N);
        for (uint32_t n = 0; n < N; n++) {
            assert_memory_equal(first + (size_t)n * HALF, keys + (size_t)n * 2 * HALF, sizeof(float[HALF]));
            assert_memory_equal(first + (size_t)(N + n) * HALF, keys + (size_t)(2 * n + 1) * HALF,
                                sizeof(float[HALF]));
        }
        check_ok(moeflux_session_clear(p.q.s, &e), &e);
        check_ok(moeflux_session_load(p.q.s, p.file, &e), &e);
        p.q.m->stages[0].view.stores = real;
        sequence_eval(&p.q, ids + N, 3, got);
        assert_memory_equal(got, want, sizeof want);
        free(whole);
        free(halves);
        place_close(&p);
    }
}

/* ---- refused files ---- */

/* Written in place: a file system that syncs each replaced file makes thousands of them slow. */
static void change_byte(const struct place *p, size_t at, uint8_t value)
{
    FILE *f = fopen(p->file, "r+b");
    assert_non_null(f);
    assert_int_equal(pwrite(fileno(f), &value, 1, (off_t)at), 1);
    fclose(f);
}

/* A session in the middle of something, whose state must not change. */
struct watched {
    struct place *p;
    uint8_t *was; /* what it saves */
    size_t bytes;
    uint32_t pos;
    const char *copy;
};

static void watch(struct watched *w, struct place *p)
{
    struct moeflux_err e = {0};
    *w = (struct watched){
        .p = p, .pos = moeflux_session_position(p->q.s), .copy = tmp_tree_path(p->dir, "copy")};
    check_ok(moeflux_session_save(p->q.s, w->copy, MOEFLUX_STATE_V3, &e), &e);
    w->was = tmp_tree_read(w->copy, &w->bytes);
}

static void expect_unchanged(struct watched *w)
{
    struct moeflux_err e = {0};
    size_t n;
    check_ok(moeflux_session_save(w->p->q.s, w->copy, MOEFLUX_STATE_V3, &e), &e);
    uint8_t *is = tmp_tree_read(w->copy, &n);
    assert_int_equal(n, w->bytes);
    assert_memory_equal(is, w->was, n);
    free(is);
}

static void expect_refused(struct watched *w, int code, const char *text)
{
    struct moeflux_err e = {0};
    int rc = moeflux_session_load(w->p->q.s, w->p->file, &e);
    sequence_refused(rc, &e, code, text);
    assert_non_null(strstr(e.text, w->p->file));
    assert_int_equal(moeflux_session_position(w->p->q.s), w->pos);
}

/* A load at position 0 fills the session itself, at other positions a second one. */
static void watch_at(struct watched *w, struct place *p, bool empty)
{
    const int32_t ids[] = {11, 12, 13, 14};
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(p->q.s, &e), &e);
    if (!empty) {
        sequence_eval(&p->q, ids, 2, NULL);
        check_ok(moeflux_session_checkpoint(p->q.s, &e), &e);
        sequence_eval(&p->q, ids + 2, 2, NULL);
    }
    watch(w, p);
}

/* Files of versions 1 to 3, the last one with a checkpoint. The caller frees. */
static uint8_t *file_of(struct place *p, uint32_t version, size_t *n)
{
    const int32_t ids[] = {21, 22, 23, 24, 25};
    struct moeflux_err e = {0};
    struct str out = {0};
    if (version < 3) {
        snapshot_write(&out, version, 3, NULL);
        *n = out.len;
        return (uint8_t *)out.data;
    }
    check_ok(moeflux_session_clear(p->q.s, &e), &e);
    sequence_eval(&p->q, ids, 2, NULL);
    check_ok(moeflux_session_checkpoint(p->q.s, &e), &e);
    sequence_eval(&p->q, ids + 2, 3, NULL);
    save(p, MOEFLUX_STATE_V3);
    return tmp_tree_read(p->file, n);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    for (uint32_t version = 1; version <= 3; version++) {
        size_t n;
        uint8_t *file = file_of(&p, version, &n);
        struct watched w;
        watch_at(&w, &p, version == 2);
        write_file(&p, file, n);
        for (size_t left = n; left-- > 0;) {
            assert_int_equal(truncate(p.file, (off_t)left), 0);
            expect_refused(&w, ERR_FORMAT, "");
        }
        expect_unchanged(&w);
        free(file);
        free(w.was);
    }
    place_close(&p);
}

static size_t header_bytes(uint32_t version)
{
    return version == 1 ? 32 : version == 2 ? 40 : 80;
}

static void every_changed_header_byte_is_refused(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    for (uint32_t version = 1; version <= 3; version++) {
        size_t n;
        uint8_t *file = file_of(&p, version, &n);
        struct watched w;
        watch_at(&w, &p, version == 1);
        write_file(&p, file, n);
        for (size_t i = 0; i < header_bytes(version); i++)
            for (uint32_t flip = 0; flip < 9; flip++) {
                change_byte(&p, i, (uint8_t)(file[i] ^ (flip < 8 ? 1u << flip : 0xffu)));
                expect_refused(&w, ERR_FORMAT, "");
                change_byte(&p, i, file[i]);
            }
        expect_unchanged(&w);
        check_ok(moeflux_session_load(p.q.s, p.file, &(struct moeflux_err){0}), &(struct moeflux_err){0});
        free(file);
        free(w.was);
    }
    place_close(&p);
}

static void every_changed_byte_of_version_3_is_refused(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    size_t n;
    uint8_t *file = file_of(&p, 3, &n);
    struct watched w;
    for (int empty = 0; empty < 2; empty++) {
        watch_at(&w, &p, empty);
        write_file(&p, file, n);
        for (size_t i = 80 + (size_t)empty; i < n; i += 3) {
            change_byte(&p, i, file[i] ^ 0x10);
            expect_refused(&w, ERR_FORMAT, "");
            change_byte(&p, i, file[i]);
            if (i % 300 < 3)
                expect_unchanged(&w);
        }
        expect_unchanged(&w);
        free(w.was);
    }
    free(file);
    place_close(&p);
}

static void set_u32(uint8_t *file, size_t at, uint32_t value)
{
    memcpy(file + at, &value, sizeof value);
}

static void wrong_bodies_are_refused(void **state)
{
    (void)state;
    static const int32_t uneven[2] = {2, 4};
    enum { FIRST_N = 40 + 4 * (SMALL_WINDOW + SMALL_S) };
    struct place p = place_open("reference");
    struct str file = {0};
    struct watched w;
    for (int empty = 0; empty < 2; empty++) {
        watch_at(&w, &p, empty);
        /* The total length equals two layers of 3. */
        snapshot_write(&file, 2, 3, uneven);
        write_file(&p, file.data, file.len);
        expect_refused(&w, ERR_FORMAT, "bytes, expected");
        snapshot_write(&file, 2, 3, NULL);
        str_add(&file, "x", 1);
        write_file(&p, file.data, file.len);
        expect_refused(&w, ERR_FORMAT, "bytes, expected");
        file.len--;
        static const uint32_t lengths[] = {0, 2, 4, 0x7fffffff, 0x80000000, 0xffffffff};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            set_u32((uint8_t *)file.data, FIRST_N, lengths[i]);
            write_file(&p, file.data, file.len);
            expect_refused(&w, ERR_FORMAT, "tokens");
        }
        set_u32((uint8_t *)file.data, FIRST_N, 3);
        /* The second layer with attention, then a number in its values and one in a state. */
        set_u32((uint8_t *)file.data, file.len - 4 - 2 * 3 * 128, 2);
        write_file(&p, file.data, file.len);
        expect_refused(&w, ERR_FORMAT, "a layer has 2 tokens, expected 3");
        set_u32((uint8_t *)file.data, file.len - 4 - 2 * 3 * 128, 3);
        set_u32((uint8_t *)file.data, file.len - 4, 0x7fc00000);
        write_file(&p, file.data, file.len);
        expect_refused(&w, ERR_FORMAT, "not finite");
        set_u32((uint8_t *)file.data, file.len - 4, 0);
        set_u32((uint8_t *)file.data, 40, 0xff800000);
        write_file(&p, file.data, file.len);
        expect_refused(&w, ERR_FORMAT, "not finite");
        expect_unchanged(&w);
        free(w.was);
    }
    str_free(&file);
    place_close(&p);
}

static void foreign_files_are_refused(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    struct watched w;
    struct moeflux_err e = {0};
    const int32_t ids[] = {1, 2, 3};
    char *dir = tmp_tree_new();
    struct sequence others[] = {sequence_open(small_model_make(dir, 2), "reference", 0, 0, 64),
                                sequence_open("tests/models/qwen-odd/mlx", "reference", 0, 0, 64)};
    watch_at(&w, &p, false);
    for (int i = 0; i < 2; i++) {
        sequence_eval(&others[i], ids, 3, NULL);
        check_ok(moeflux_session_save(others[i].s, p.file, MOEFLUX_STATE_V3, &e), &e);
        expect_refused(&w, ERR_FORMAT, "a state of another model");
        sequence_close(&others[i]);
    }
    tmp_tree_remove(dir);
    write_file(&p, "", 0);
    expect_refused(&w, ERR_FORMAT, "no MFLX");
    write_file(&p, "{\"a\": 1}", 8);
    expect_refused(&w, ERR_FORMAT, "no MFLX");
    assert_int_equal(unlink(p.file), 0);
    expect_refused(&w, ERR_IO, "");
    sequence_refused(moeflux_session_load(p.q.s, p.dir, &e), &e, ERR_IO, p.dir);
    expect_unchanged(&w);
    free(w.was);
    place_close(&p);
}

static void states_longer_than_the_context_do_not_fit(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    struct moeflux_session *shorter;
    struct moeflux_err e = {0};
    int32_t ids[20];
    sequence_ids(&p.q, 0, ids, 20);
    sequence_eval(&p.q, ids, 20, NULL);
    check_ok(moeflux_session_new(&shorter, p.q.m, 19, &e), &e);
    for (uint32_t format = 2; format <= 3; format++) {
        save(&p, (enum moeflux_state_format)format);
        sequence_refused(moeflux_session_load(shorter, p.file, &e), &e, ERR_NO_FIT, "20 tokens");
    }
    assert_int_equal(moeflux_session_position(shorter), 0);
    moeflux_session_free(shorter);
    place_close(&p);
}

/* ---- rows of other types ---- */

static struct sequence open_narrow(const char *model, const char *device, enum moeflux_kv_type type)
{
    struct sequence q = {.vocab = SMALL_VOCAB};
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = model, .device = device, .kv_type = type};
    check_ok(device_open_model(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    return q;
}

/* refusal: what loading into a float32 cache reports. distance: the most that the other cache's logits may
 * differ by. */
static void rows_are_kept(enum moeflux_kv_type type, const char *refusal, float distance)
{
    enum { N = 300 };
    for (size_t i = 0; i < 2; i++) {
        struct place p = place_open("reference");
        struct sequence q = open_narrow(p.model, i ? getenv("MOEFLUX_DEVICE") : "reference", type);
        struct moeflux_err e = {0};
        int32_t ids[N + 3];
        float want[SMALL_VOCAB], got[SMALL_VOCAB];
        sequence_ids(&q, 0, ids, N + 3);
        sequence_fresh(&q, ids, N, ids + N, 3, want);
        for (uint32_t format = 2; format <= 3; format++) {
            sequence_fresh(&q, NULL, 0, ids, N, NULL);
            check_ok(moeflux_session_save(q.s, p.file, (enum moeflux_state_format)format, &e), &e);
            check_ok(moeflux_session_clear(q.s, &e), &e);
            check_ok(moeflux_session_load(q.s, p.file, &e), &e);
            sequence_eval(&q, ids + N, 3, got);
            assert_memory_equal(got, want, sizeof want);
            int rc = moeflux_session_load(p.q.s, p.file, &e);
            if (format == 3) {
                sequence_refused(rc, &e, ERR_FORMAT, refusal);
            } else {
                check_ok(rc, &e);
                sequence_eval(&p.q, ids + N, 3, got);
                assert_true(sequence_distance(&q, got, want) <= distance);
            }
        }
        sequence_close(&q);
        place_close(&p);
    }
}

static void float16_rows_are_kept(void **state)
{
    (void)state;
    rows_are_kept(MOEFLUX_KV_TYPE_F16, "float16, this one's float32", 2e-2f);
}

/* Numbers that were codes get the same codes again. */
static void q8_0_rows_are_kept(void **state)
{
    (void)state;
    rows_are_kept(MOEFLUX_KV_TYPE_Q8_0, "q8_0, this one's float32", 5e-2f);
}

/* A row of latents in q8_0 has the rotary key in it, which version 2 cannot have. */
static void q8_0_latents_need_version_4_and_all_of_the_file(void **state)
{
    (void)state;
    enum { N = 5 };
    char *dir = tmp_tree_new();
    const char *file = tmp_tree_path(dir, "state");
    struct sequence q =
        sequence_open_kv("tests/models/deepseek-lone/mlx", "reference", MOEFLUX_KV_TYPE_Q8_0, 0, 0, CONTEXT);
    struct moeflux_err e = {0};
    struct moeflux_state_info info;
    struct stat st;
    int32_t ids[N];
    sequence_ids(&q, 0, ids, N);
    sequence_eval(&q, ids, N, NULL);
    sequence_refused(moeflux_session_save(q.s, file, MOEFLUX_STATE_V2, &e), &e, ERR_UNSUPPORTED,
                     "version 2 has other rows");
    check_ok(moeflux_session_save(q.s, file, MOEFLUX_STATE_V3, &e), &e);
    check_ok(moeflux_read_state_info(file, &info, &e), &e);
    assert_int_equal(info.version, 4);
    check_ok(moeflux_session_load(q.s, file, &e), &e);
    assert_int_equal(stat(file, &st), 0);
    for (off_t left = st.st_size; left-- > 0;) {
        assert_int_equal(truncate(file, left), 0);
        sequence_refused(moeflux_session_load(q.s, file, &e), &e, ERR_FORMAT, "");
    }
    assert_int_equal(moeflux_session_position(q.s), N);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

/* The checksum is made to fit the changed file, as in a crafted file. row: bytes of a row; place: offset in
 * it of a number, or of q8_0 of a scale. */
static void expect_bad_numbers_refused(enum moeflux_kv_type type, size_t row, size_t place)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01};
    /* The last rows in front of the checksum are a layer's values. */
    enum { N = 5, BEFORE_CHECKSUM = 8 };
    struct place p = place_open("reference");
    const char *dir = tmp_tree_path(p.dir, "attention");
    assert_int_equal(mkdir(dir, 0777), 0);
    struct sequence q = open_narrow(small_model_make_attention(dir, 3), "reference", type);
    int32_t ids[N];
    struct moeflux_err e = {0};
    size_t n;
    sequence_ids(&q, 0, ids, N);
    sequence_eval(&q, ids, N, NULL);
    check_ok(moeflux_session_save(q.s, p.file, MOEFLUX_STATE_V3, &e), &e);
    uint8_t *file = tmp_tree_read(p.file, &n);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t at = n - BEFORE_CHECKSUM - (1 + i) * row + place;
        uint16_t was;
        memcpy(&was, file + at, sizeof was);
        memcpy(file + at, &bad[i], sizeof was);
        uint64_t sum = XXH3_64bits(file, n - BEFORE_CHECKSUM);
        memcpy(file + n - BEFORE_CHECKSUM, &sum, sizeof sum);
        write_file(&p, file, n);
        char text[64];
        snprintf(text, sizeof text, "the number at offset %zu is not finite", at);
        sequence_refused(moeflux_session_load(q.s, p.file, &e), &e, ERR_FORMAT, text);
        memcpy(file + at, &was, sizeof was);
    }
    free(file);
    sequence_close(&q);
    place_close(&p);
}

static void float16_rows_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    expect_bad_numbers_refused(MOEFLUX_KV_TYPE_F16, 2 * SMALL_HEAD_DIM, 2 * SMALL_HEAD_DIM - 2);
}

static void q8_0_rows_whose_scales_are_not_finite_are_refused(void **state)
{
    (void)state;
    expect_bad_numbers_refused(MOEFLUX_KV_TYPE_Q8_0, SMALL_HEAD_DIM + 8, SMALL_HEAD_DIM);
}

/* ---- what a header tells, and formats that cannot be written ---- */

static void headers_tell_what_they_know(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    for (uint32_t version = 1; version <= 3; version++) {
        size_t n;
        uint64_t fingerprint;
        uint8_t *file = file_of(&p, version, &n);
        struct moeflux_state_info info;
        struct moeflux_err e = {0};
        write_file(&p, file, n);
        check_ok(moeflux_read_state_info(p.file, &info, &e), &e);
        check_ok(moeflux_model_fingerprint(p.q.m, &fingerprint, &e), &e);
        assert_int_equal(info.version, version);
        assert_int_equal(info.n_layers, SMALL_LAYERS);
        assert_int_equal(info.has_tokens, version == 3);
        assert_int_equal(info.n_tokens, version == 3 ? 5 : 0);
        assert_int_equal(info.n_checkpoints, version == 3);
        assert_true(info.fingerprint == (version == 3 ? fingerprint : 0));
        assert_int_equal(info.bytes, n);
        write_file(&p, file, n - 1);
        assert_int_equal(moeflux_read_state_info(p.file, &info, &e), version == 3 ? ERR_FORMAT : 0);
        free(file);
    }
    struct moeflux_err e = {0};
    sequence_refused(moeflux_session_save(p.q.s, p.file, (enum moeflux_state_format)1, &e), &e, ERR_USAGE,
                     "2 or 3");
    sequence_refused(moeflux_session_save(p.q.s, "/nowhere/state", MOEFLUX_STATE_V3, &e), &e, ERR_IO,
                     "/nowhere/state");
    place_close(&p);
}

/* ---- interruptions ---- */

static bool is_file(const char *path, const uint8_t *bytes, size_t n)
{
    size_t k;
    uint8_t *is = tmp_tree_read(path, &k);
    bool same = k == n && memcmp(is, bytes, n) == 0;
    free(is);
    return same;
}

static int save_for_ever(struct sequence *a, struct sequence *b, const char *path)
{
    struct moeflux_err e = {0};
    for (;;)
        if (moeflux_session_save(a->s, path, MOEFLUX_STATE_V3, &e) < 0 ||
            moeflux_session_save(b->s, path, MOEFLUX_STATE_V2, &e) < 0)
            return 1;
}

static void a_killed_save_leaves_the_old_file_or_the_new(void **state)
{
    (void)state;
    enum { KILLS = 200, LONG = 600, SHORT = 500, STEP_NS = 40000 };
    struct place p = place_open("reference");
    struct sequence a = p.q, b = p.q;
    struct fuzz random = {7};
    struct str file = {0};
    struct moeflux_err e = {0};
    uint8_t *of[2];
    size_t n[2];
    uint32_t n_found[2] = {0};
    check_ok(moeflux_session_new(&b.s, p.q.m, CONTEXT, &e), &e);
    for (uint32_t i = 0; i < 2; i++) {
        snapshot_write(&file, 2, i ? SHORT : LONG, NULL);
        write_file(&p, file.data, file.len);
        check_ok(moeflux_session_load(i ? b.s : a.s, p.file, &e), &e);
        check_ok(moeflux_session_save(i ? b.s : a.s, p.file, i ? MOEFLUX_STATE_V2 : MOEFLUX_STATE_V3, &e),
                 &e);
        of[i] = tmp_tree_read(p.file, &n[i]);
    }
    size_t n_files = tmp_tree_count(p.dir);
    /* Stops at random times within 8 ms; if a save takes longer, within more and more. */
    uint32_t n_kills = 0;
    for (; n_kills < KILLS || n_found[0] == 0 || n_found[1] == 0; n_kills++) {
        uint32_t most_ns = STEP_NS * (n_kills < KILLS ? KILLS : n_kills);
        assert_true(n_kills < 20 * KILLS);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(save_for_ever(&a, &b, p.file));
        nanosleep(&(struct timespec){.tv_nsec = (long)fuzz_below(&random, most_ns)}, NULL);
        int status;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        uint32_t which = is_file(p.file, of[0], n[0]) ? 0 : 1;
        assert_true(is_file(p.file, of[which], n[which]));
        n_found[which]++;
    }
    /* The next save takes away what the killed ones left. */
    check_ok(moeflux_session_save(a.s, p.file, MOEFLUX_STATE_V3, &e), &e);
    assert_int_equal(tmp_tree_count(p.dir), n_files);
    printf("%u kills: %u times the one file, %u times the other\n", n_kills, n_found[0], n_found[1]);
    free(of[0]);
    free(of[1]);
    str_free(&file);
    moeflux_session_free(b.s);
    place_close(&p);
}

static bool stop_state(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    (void)unit;
    return strcmp(what, (const char *)ctx) != 0 || done < total / 2;
}

static void an_interrupted_save_or_load_changes_nothing(void **state)
{
    (void)state;
    static char step[] = "writing the state";
    struct place p = place_open("reference");
    struct sequence q = {.vocab = SMALL_VOCAB};
    struct str file = {0};
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = p.model, .device = "reference", .progress = {stop_state, step}};
    check_ok(device_open_model(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, CONTEXT, &e), &e);
    snapshot_write(&file, 2, 300, NULL);
    write_file(&p, file.data, file.len);
    check_ok(moeflux_session_load(q.s, p.file, &e), &e);
    sequence_refused(moeflux_session_save(q.s, p.file, MOEFLUX_STATE_V3, &e), &e, ERR_INTERRUPTED, p.file);
    assert_true(is_file(p.file, (uint8_t *)file.data, file.len));
    memcpy(step, "reading", 7);
    snapshot_write(&file, 2, 200, NULL);
    write_file(&p, file.data, file.len);
    sequence_refused(moeflux_session_load(q.s, p.file, &e), &e, ERR_INTERRUPTED, p.file);
    assert_int_equal(moeflux_session_position(q.s), 300);
    str_free(&file);
    sequence_close(&q);
    place_close(&p);
}

static bool count_report(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    unsigned *n = ctx;
    (void)what, (void)unit, (void)done, (void)total;
    ++*n;
    return true;
}

/* A state replaces the tokens of a used session and nothing else. */
static void a_load_keeps_what_the_caller_has_set(void **state)
{
    (void)state;
    struct place p = place_open("reference");
    struct moeflux_err e = {0};
    int32_t ids[40];
    uint32_t at[8];
    unsigned n_reports = 0;
    sequence_ids(&p.q, 1, ids, 40);
    for (int is_used = 0; is_used < 2; is_used++) {
        sequence_fresh(&p.q, NULL, 0, ids, 10, NULL);
        save(&p, MOEFLUX_STATE_V3);
        check_ok(moeflux_session_clear(p.q.s, &e), &e);
        if (is_used)
            sequence_eval(&p.q, ids + 20, 5, NULL);
        check_ok(moeflux_session_set_checkpoint_cap(p.q.s, 2, &e), &e);
        moeflux_session_checkpoint_at(p.q.s, 15);
        sequence_watch(p.q.s, &(struct moeflux_progress){count_report, &n_reports});
        n_reports = 0;
        check_ok(moeflux_session_load(p.q.s, p.file, &e), &e);
        assert_int_equal(moeflux_session_checkpoint_cap(p.q.s), 2);
        sequence_eval(&p.q, ids + 10, 20, NULL);
        assert_true(n_reports > 0);
        assert_int_equal(moeflux_session_list_checkpoints(p.q.s, at, 8), 1);
        assert_int_equal(at[0], 15);
    }
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_load),
        cmocka_unit_test(a_longer_state_continues_a_shorter_one),
        cmocka_unit_test(rows_side_by_side_are_distinguished),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_changed_header_byte_is_refused),
        cmocka_unit_test(every_changed_byte_of_version_3_is_refused),
        cmocka_unit_test(wrong_bodies_are_refused),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(states_longer_than_the_context_do_not_fit),
        cmocka_unit_test(float16_rows_are_kept),
        cmocka_unit_test(q8_0_rows_are_kept),
        cmocka_unit_test(q8_0_latents_need_version_4_and_all_of_the_file),
        cmocka_unit_test(float16_rows_that_are_not_finite_are_refused),
        cmocka_unit_test(q8_0_rows_whose_scales_are_not_finite_are_refused),
        cmocka_unit_test(headers_tell_what_they_know),
        cmocka_unit_test(a_killed_save_leaves_the_old_file_or_the_new),
        cmocka_unit_test(an_interrupted_save_or_load_changes_nothing),
        cmocka_unit_test(a_load_keeps_what_the_caller_has_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
