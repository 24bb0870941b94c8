/* Experts spread over several directories: what convert writes, what opening refuses, how the reader uses
 * several disks.
 *
 * suites: check fast asan tsan */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "args.h"
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "convert/convert.h"
#include "disk_room.h"
#include "experts/reader.h"
#include "model/expert_places.h"
#include "model/model_dir.h"
#include "tmp_tree.h"

#define TINY      "tests/models/tiny"
#define QWEN_HF   "tests/models/sources/qwen/hf"
#define QWEN3_MLX "tests/models/qwen3-odd/mlx"
#define MIXED     "tests/models/formats/mixed-3-6"

/* --- a directory with the model `whole`, the same one in `main` with its parts p1 and p2 --- */

struct fixture {
    char *tmp;
    const char *whole, *dst, *list;
    const char *parts[3]; /* [0] is dst */
};

static const char *join_list(struct fixture *f)
{
    char list[1024];
    f->parts[0] = f->dst = tmp_tree_path(f->tmp, "main");
    f->parts[1] = tmp_tree_path(f->tmp, "p1");
    f->parts[2] = tmp_tree_path(f->tmp, "p2");
    snprintf(list, sizeof list, "%s,%s/", f->parts[1], f->parts[2]);
    return strdup(list);
}

static int run(const struct fixture *f, const char *src, bool verify, struct moeflux_progress progress,
               struct convert_result *r, struct moeflux_err *e)
{
    struct convert_result ignored;
    struct convert_options o = {
        .src = src, .dst = f->dst, .spread = f->list, .verify = verify, .n_threads = 2, .progress = progress};
    *e = (struct moeflux_err){0};
    return convert_run(&o, r ? r : &ignored, e);
}

static const struct moeflux_progress silent;

static void begin(struct fixture *f, const char *src)
{
    struct convert_result r;
    struct moeflux_err e = {0};
    *f = (struct fixture){.tmp = tmp_tree_new()};
    f->list = join_list(f);
    f->whole = tmp_tree_path(f->tmp, "whole");
    check_ok(convert_run(&(struct convert_options){.src = src, .dst = f->whole}, &r, &e), &e);
}

static void begin_spread(struct fixture *f, const char *src)
{
    struct moeflux_err e;
    begin(f, src);
    check_ok(run(f, src, false, silent, NULL, &e), &e);
}

static void end(struct fixture *f)
{
    free((void *)(uintptr_t)f->list);
    tmp_tree_remove(f->tmp);
}

/* Every expert has the same bytes as in `whole`. */
static void expect_same_experts(const struct fixture *f)
{
    struct model_dir a, b;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&a, f->whole, &e), &e);
    check_ok(model_dir_open(&b, f->dst, &e), &e);
    assert_int_equal(a.max_expert_bytes, b.max_expert_bytes);
    assert_int_equal(a.expert_bytes, b.expert_bytes);
    uint8_t *x = malloc(a.max_expert_bytes), *y = malloc(a.max_expert_bytes);
    for (uint32_t layer = 0; layer < a.config.n_layers; layer++) {
        uint64_t bytes = a.experts[layer].bytes;
        assert_int_equal(bytes, b.experts[layer].bytes);
        for (uint32_t i = 0; config_has_experts(&a.config, layer) && i < a.config.n_experts; i++) {
            check_ok(model_dir_read_expert(&a, layer, i, 0, bytes, x, &e), &e);
            check_ok(model_dir_read_expert(&b, layer, i, 0, bytes, y, &e), &e);
            assert_memory_equal(x, y, bytes);
        }
    }
    free(x);
    free(y);
    model_dir_close(&a);
    model_dir_close(&b);
}

static void expect_nothing(const struct fixture *f)
{
    for (int i = 0; i < 3; i++) {
        char partial[1024];
        snprintf(partial, sizeof partial, "%s.partial", f->parts[i]);
        assert_false(file_exists(f->parts[i]));
        assert_false(file_exists(partial));
    }
}

/* --- what is written --- */

static void experts_have_the_bytes_that_they_have_on_one_disk(void **state)
{
    (void)state;
    static const char *const sources[] = {TINY, QWEN_HF, QWEN3_MLX, "tests/models/deepseek-odd/mlx"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct fixture f;
        begin_spread(&f, sources[i]);
        expect_same_experts(&f);
        tmp_tree_expect_same(f.whole, f.dst, "model_weights.bin");
        tmp_tree_expect_same(f.whole, f.dst, "model_weights.json");
        tmp_tree_expect_same(f.whole, f.dst, "packed_experts/layout.json");
        assert_false(file_exists(tmp_tree_path(f.whole, "spread.json")));
        for (int k = 0; k < 3; k++)
            assert_false(file_exists(tmp_tree_path(f.parts[k], "convert.state")));
        end(&f);
    }
}

/* Seven blocks of 4096 bytes: three, three and the last one, in turn. */
static void every_expert_lies_in_all_parts_at_whole_blocks(void **state)
{
    (void)state;
    struct fixture f;
    struct model_dir m;
    struct moeflux_err e = {0};
    uint64_t bytes[3] = {0};
    begin_spread(&f, TINY);
    check_ok(model_dir_open(&m, f.dst, &e), &e);
    assert_int_equal(m.parts.spread.n_parts, 3);
    for (uint32_t layer = 0; layer < m.config.n_layers; layer++)
        for (uint32_t i = 0; i < m.config.n_experts; i++) {
            struct extent x[EXPERT_MAX_EXTENTS];
            bool is_in[3] = {false};
            uint64_t at = 0;
            assert_int_equal(model_dir_expert(&m, layer, i, x), 3);
            for (int k = 0; k < 3; k++) {
                uint32_t part = (x[k].file - 1) % 3;
                size_t n = strlen(f.parts[part]);
                assert_memory_equal(m.files[x[k].file].path, f.parts[part], n);
                assert_int_equal(m.files[x[k].file].path[n], '/');
                assert_int_equal(x[k].off % SPREAD_ALIGN, 0);
                assert_int_equal(x[k].at, at);
                at += x[k].bytes;
                bytes[part] += x[k].bytes;
                is_in[part] = true;
            }
            assert_int_equal(at, m.experts[layer].bytes);
            assert_true(is_in[0] && is_in[1] && is_in[2]);
        }
    /* 32 experts do not divide by 3. */
    for (int k = 0; k < 3; k++)
        assert_true(bytes[k] * 3 > m.expert_bytes / 20 * 19 && bytes[k] * 3 < m.expert_bytes / 20 * 21);
    model_dir_close(&m);
    end(&f);
}

/* down_proj of layers 2 and 3 has 6 bits, all else 3: experts of 21504 and 27648 bytes. */
static void layers_with_larger_experts_have_larger_pieces(void **state)
{
    (void)state;
    static const uint64_t stripes[] = {8192, 8192, 12288, 12288};
    struct fixture f;
    struct model_dir m;
    struct moeflux_err e = {0};
    begin(&f, MIXED);
    check_ok(run(&f, MIXED, true, silent, NULL, &e), &e);
    expect_same_experts(&f);
    json_t *root = json_load_file(tmp_tree_path(f.dst, "spread.json"), 0, NULL);
    assert_non_null(root);
    assert_null(json_object_get(root, "stripe"));
    json_decref(root);
    check_ok(model_dir_open(&m, f.dst, &e), &e);
    assert_int_equal(m.config.n_layers, 4);
    for (uint32_t layer = 0; layer < 4; layer++)
        for (uint32_t i = 0; i < m.config.n_experts; i++) {
            struct extent x[EXPERT_MAX_EXTENTS];
            assert_int_equal(model_dir_expert(&m, layer, i, x), 3);
            for (int k = 0; k < 3; k++) {
                assert_int_equal(x[k].off, i * stripes[layer]);
                assert_int_equal(x[k].at, (uint64_t)k * stripes[layer]);
                assert_int_equal(m.files[x[k].file].bytes, m.config.n_experts * stripes[layer]);
            }
        }
    model_dir_close(&m);
    end(&f);
}

static void every_part_has_the_checksums_of_its_files(void **state)
{
    (void)state;
    static const size_t n_files[] = {13, 9, 9};
    struct fixture f;
    begin_spread(&f, TINY);
    for (int i = 0; i < 3; i++) {
        json_t *root = json_load_file(tmp_tree_path(f.parts[i], "checksums.json"), 0, NULL), *entry;
        json_t *files = json_object_get(root, "files");
        const char *name;
        assert_int_equal(json_object_size(files), n_files[i]);
        json_object_foreach(files, name, entry)
        {
            size_t n;
            char hex[17];
            uint8_t *bytes = tmp_tree_read(tmp_tree_path(f.parts[i], name), &n);
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(bytes, n));
            assert_string_equal(json_string_value(json_object_get(entry, "xxh3")), hex);
            free(bytes);
        }
        json_decref(root);
    }
    end(&f);
}

/* --- what is refused before anything is written --- */

static void expect_refused(struct fixture *f, const char *list, int code, const char *text)
{
    struct fixture other = *f;
    struct moeflux_err e;
    other.list = list;
    int rc = run(&other, QWEN3_MLX, false, silent, NULL, &e);
    if (rc != code || !strstr(e.text, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e.text, code, text);
    expect_nothing(f);
}

static void lists_of_directories_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    char list[4096];
    begin(&f, QWEN3_MLX);
    expect_refused(&f, "", ERR_USAGE, "`spread`: an empty path");
    snprintf(list, sizeof list, "%s,", f.parts[1]);
    expect_refused(&f, list, ERR_USAGE, "`spread`: an empty path");
    snprintf(list, sizeof list, "%s,%s", f.parts[1], f.parts[1]);
    expect_refused(&f, list, ERR_USAGE, "p1 is named twice");
    snprintf(list, sizeof list, "%s/../%s//", f.tmp, strrchr(f.dst, '/') - strlen(strrchr(f.tmp, '/')) + 1);
    expect_refused(&f, list, ERR_USAGE, "main is named twice");
    expect_refused(&f, f.whole, ERR_USAGE, "whole exists already");
    snprintf(list, sizeof list, "%s/none/p1", f.tmp);
    expect_refused(&f, list, ERR_IO, "/none: No such file");
    list[0] = '\0';
    for (int i = 0; i < 8; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s%d", i ? "," : "", f.parts[1], i);
    expect_refused(&f, list, ERR_USAGE, "`spread`: more than 7 directories");
    end(&f);
}

/* 4.2 MB of experts in whole blocks in each of two parts, both on one disk; 67.1 MB for small files, 3.2
 * dense. */
static void the_room_of_parts_on_one_disk_is_added_up(void **state)
{
    (void)state;
    struct fixture f;
    struct moeflux_err e;
    struct convert_result r;
    begin(&f, TINY);
    struct convert_options o = {.src = TINY, .dst = f.dst, .spread = f.parts[1]};
    disk_room_pretend(67108864 + 3300000 + 4300000);
    int rc = convert_run(&o, &r, &e);
    disk_room_pretend(UINT64_MAX);
    assert_int_equal(rc, ERR_NO_FIT);
    if (!strstr(e.text, "main: 0.079 GB ("))
        fail_msg("%s", e.text);
    expect_nothing(&f);
    disk_room_pretend(67108864 + 3300000 + 8500000);
    rc = convert_run(&o, &r, &e);
    disk_room_pretend(UINT64_MAX);
    check_ok(rc, &e);
    expect_same_experts(&f);
    end(&f);
}

/* --- interruptions --- */

struct stop {
    uint64_t after; /* stop when this much is done */
    bool kill;
    const char *obstacle;   /* make this directory near the end */
    const char *spoil_file; /* change it when verifying begins */
};

static bool report(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct stop *s = ctx;
    (void)unit;
    if (s->obstacle && done * 10 > total * 9)
        mkdir(s->obstacle, 0700);
    if (s->spoil_file && !strcmp(what, "verifying")) {
        FILE *f = fopen(s->spoil_file, "r+b");
        s->spoil_file = NULL;
        if (f && fseek(f, 10000, SEEK_SET) == 0)
            fputs("spoilt", f);
        if (f)
            fclose(f);
    }
    if (done >= s->after && s->kill)
        raise(SIGKILL);
    return done < s->after;
}

static void a_stopped_run_is_taken_up_again(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    begin(&f, TINY);
    /* 10.3 MB in all, of which 3.2 are dense and 0.88 each layer. */
    for (uint64_t after = 1000000; after < 10000000; after += 2100000) {
        struct stop stop = {.after = after};
        int rc = run(&f, TINY, false, (struct moeflux_progress){report, &stop}, &r, &e);
        assert_int_equal(rc, ERR_INTERRUPTED);
        for (int i = 0; i < 3; i++)
            assert_false(file_exists(f.parts[i]));
    }
    check_ok(run(&f, TINY, true, silent, &r, &e), &e);
    assert_true(r.n_layers_kept >= 5 && r.n_layers_kept < 8);
    assert_int_equal(r.n_parts, 3);
    expect_same_experts(&f);
    end(&f);
}

static void a_killed_run_is_taken_up_again(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    begin(&f, QWEN_HF);
    for (uint64_t after = 0; after < 2880000; after += 570000) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct stop stop = {.after = after, .kill = true};
            run(&f, QWEN_HF, false, (struct moeflux_progress){report, &stop}, &r, &e);
            _exit(1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    check_ok(run(&f, QWEN_HF, true, silent, &r, &e), &e);
    assert_true(r.n_layers_kept > 0);
    expect_same_experts(&f);
    /* packed_experts, part.json, checksums.json; 4 layers: no half-written file. */
    assert_int_equal(tmp_tree_count(f.parts[1]), 3);
    assert_int_equal(tmp_tree_count(tmp_tree_path(f.parts[1], "packed_experts")), 4);
    end(&f);
}

/* A layer counts as finished where all parts have it. */
static void a_layer_that_one_part_lost_is_written_again(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    struct stop stop = {.after = 8000000};
    begin(&f, TINY);
    assert_int_equal(run(&f, TINY, false, (struct moeflux_progress){report, &stop}, &r, &e), ERR_INTERRUPTED);
    assert_int_equal(unlink(tmp_tree_path(f.tmp, "p2.partial/packed_experts/layer_01.bin")), 0);
    assert_int_equal(truncate(tmp_tree_path(f.tmp, "p1.partial/packed_experts/layer_02.bin"), 1000), 0);
    check_ok(run(&f, TINY, true, silent, &r, &e), &e);
    assert_int_equal(r.n_layers_kept, 3);
    expect_same_experts(&f);
    end(&f);
}

/* Something takes the model's name while the parts have theirs already. */
static void a_run_that_ends_between_the_renames_is_taken_up_again(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    begin(&f, TINY);
    struct stop stop = {.after = UINT64_MAX, .obstacle = f.dst};
    assert_int_equal(run(&f, TINY, false, (struct moeflux_progress){report, &stop}, &r, &e), ERR_IO);
    assert_non_null(strstr(e.text, "main.partial: rename to"));
    assert_true(file_exists(f.parts[1]) && file_exists(f.parts[2]));
    assert_int_equal(rmdir(f.dst), 0);
    check_ok(run(&f, TINY, true, silent, &r, &e), &e);
    assert_int_equal(r.n_layers_kept, 8);
    for (int i = 0; i < 3; i++)
        assert_false(file_exists(tmp_tree_path(f.parts[i], "convert.state")));
    expect_same_experts(&f);
    end(&f);
}

static void an_unfinished_run_with_other_directories_is_not_mixed_in(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    struct stop stop = {.after = 5000000};
    begin(&f, TINY);
    assert_int_equal(run(&f, TINY, false, (struct moeflux_progress){report, &stop}, &r, &e), ERR_INTERRUPTED);
    const char *lists[] = {NULL, f.parts[1]};
    for (int i = 0; i < 2; i++) {
        struct convert_options o = {.src = TINY, .dst = f.dst, .spread = lists[i]};
        assert_int_equal(convert_run(&o, &r, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "main.partial holds an unfinished conversion of another source, or "
                                       "with another `spread`"));
    }
    check_ok(run(&f, TINY, false, silent, &r, &e), &e);
    end(&f);
}

static void a_part_that_changed_on_the_disk_is_found_and_made_again(void **state)
{
    (void)state;
    struct fixture f;
    struct convert_result r;
    struct moeflux_err e;
    begin(&f, TINY);
    struct stop stop = {.after = UINT64_MAX,
                        .spoil_file = tmp_tree_path(f.tmp, "p2.partial/packed_experts/layer_07.bin")};
    assert_int_equal(run(&f, TINY, true, (struct moeflux_progress){report, &stop}, &r, &e), ERR_IO);
    assert_non_null(strstr(e.text, "p2.partial/packed_experts/layer_07.bin: checksum "));
    check_ok(run(&f, TINY, true, silent, &r, &e), &e);
    assert_int_equal(r.n_layers_kept, 7);
    expect_same_experts(&f);
    end(&f);
}

/* --- what opening refuses --- */

static void expect_not_opened(const char *dir, int code, const char *text)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    int rc = model_dir_open(&m, dir, &e);
    if (rc != code || !strstr(e.text, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e.text, code, text);
}

static void parts_that_are_missing_or_not_the_models_are_refused(void **state)
{
    (void)state;
    struct fixture f, other;
    begin_spread(&f, QWEN3_MLX);
    begin_spread(&other, TINY);
    const char *away = tmp_tree_path(f.tmp, "away");
    assert_int_equal(rename(f.parts[2], away), 0);
    expect_not_opened(f.dst, ERR_IO,
                      "/p2: part 2 of the experts is not there; mount its disk, or correct its path in ");
    tmp_tree_copy(other.parts[2], f.parts[2]);
    expect_not_opened(f.dst, ERR_FORMAT, "/p2/part.json: a part of another model (id ");
    tmp_tree_replace(f.dst, "spread.json", "/p2", "/p1");
    expect_not_opened(f.dst, ERR_FORMAT,
                      "/p1/part.json: part 1, expected part 2; correct the order of the paths in ");
    expect_not_opened(f.parts[1], ERR_IO,
                      "a part of a model's experts; the model is the directory whose spread.json");
    end(&other);
    end(&f);
}

/* One line to edit; a relative path counts from where the line stands. */
static void a_part_that_was_moved_is_found_by_its_new_path(void **state)
{
    (void)state;
    struct fixture f;
    char path[1024];
    begin_spread(&f, QWEN3_MLX);
    assert_int_equal(rename(f.parts[1], tmp_tree_path(f.tmp, "moved")), 0);
    snprintf(path, sizeof path, "%s/p1", f.tmp);
    tmp_tree_replace(f.dst, "spread.json", path, "../moved");
    expect_same_experts(&f);
    snprintf(path, sizeof path, "%s/moved", f.tmp);
    tmp_tree_replace(f.dst, "spread.json", "../moved", path);
    expect_same_experts(&f);
    end(&f);
}

static void files_of_another_length_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"main/packed_experts/layer_02.bin", "p2/packed_experts/layer_02.bin"};
    struct fixture f;
    begin_spread(&f, QWEN3_MLX);
    for (int i = 0; i < 2; i++) {
        struct stat st;
        char text[160];
        const char *path = tmp_tree_path(f.tmp, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(truncate(path, st.st_size - 1), 0);
        snprintf(text, sizeof text, "%s: %lld bytes, expected %lld (pieces of 4 experts", names[i],
                 (long long)st.st_size - 1, (long long)st.st_size);
        expect_not_opened(f.dst, ERR_FORMAT, text);
        assert_int_equal(truncate(path, st.st_size), 0);
    }
    assert_int_equal(unlink(tmp_tree_path(f.tmp, names[1])), 0);
    expect_not_opened(f.dst, ERR_IO, "p2/packed_experts/layer_02.bin: No such file");
    end(&f);
}

static void descriptions_that_lie_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name, *old, *with, *text;
    } lies[] = {
        {"main", "spread.json", "\"id\": \"", "\"id\": \"x", "spread.json: id is \"x"},
        {"main", "spread.json", "\"id\"", "\"no\"",
         "spread.json: id is \"\", expected 16 hexadecimal digits"},
        {"main", "spread.json", "\"stripe\": 8192", "\"stripe\": 8191",
         "stripe is 8191, expected a multiple"},
        {"main", "spread.json", "\"stripe\": 8192", "\"stripe\": 4096",
         "stripe is 4096, too little for experts of 13824 bytes in 3 parts"},
        {"main", "spread.json", "\"stripe\": 8192", "\"stripe\": 0", "spread.json"},
        {"main", "spread.json", "\"parts\": [", "\"parts\": [1,", "parts[0] is no path"},
        {"main", "spread.json", "\"parts\": [", "\"parts\": [\"\",", "parts[0] is no path"},
        {"main", "spread.json", "\"parts\": [", "\"parts\": [], \"was\": [", "parts has 0 paths"},
        {"main", "spread.json", "\"parts\": [", "\"parts\": [1,2,3,4,5,6,",
         "parts has 8 paths, expected 1 to 7"},
        {"main", "spread.json", "\"parts\": [", "\"parts\": {", "spread.json"},
        {"p1", "part.json", "\"part\": 1", "\"part\": 9", "part.json"},
        {"p1", "part.json", "\"parts\": 3", "\"parts\": 4", "part.json: a part of another model"},
        {"p1", "part.json", "\"part\"", "\"no\"", "part.json"},
        {"p1", "part.json", "{", "", "part.json"},
    };
    struct fixture f;
    begin_spread(&f, QWEN3_MLX);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const char *dir = tmp_tree_path(f.tmp, lies[i].dir);
        size_t n;
        uint8_t *good = tmp_tree_read(tmp_tree_path(dir, lies[i].name), &n);
        tmp_tree_replace(dir, lies[i].name, lies[i].old, lies[i].with);
        expect_not_opened(f.dst, ERR_FORMAT, lies[i].text);
        tmp_tree_write(dir, lies[i].name, good, n);
        free(good);
    }
    expect_same_experts(&f);
    end(&f);
}

/* --- reading --- */

enum { PAGE = 4096 };

static struct read_request *start_all(struct reader *r, const struct model_dir *m, uint32_t layer)
{
    struct read_request *q = calloc(m->config.n_experts, sizeof *q);
    for (uint32_t i = 0; i < m->config.n_experts; i++) {
        void *dst;
        assert_int_equal(posix_memalign(&dst, PAGE, size_round_up(m->experts[layer].bytes, PAGE)), 0);
        q[i].dst = dst;
        q[i].layer = layer;
        q[i].expert = i;
        reader_start(r, &q[i]);
    }
    return q;
}

static void wait_all(struct reader *r, const struct model_dir *m, struct read_request *q)
{
    uint8_t *want = malloc(m->max_expert_bytes);
    for (uint32_t i = 0; i < m->config.n_experts; i++) {
        struct moeflux_err e = {0};
        check_ok(reader_wait(r, &q[i], &e), &e);
        uint64_t bytes = m->experts[q[i].layer].bytes;
        check_ok(model_dir_read_expert(m, q[i].layer, i, 0, bytes, want, &e), &e);
        assert_memory_equal(q[i].dst, want, bytes);
        free(q[i].dst);
    }
    free(want);
    free(q);
}

static void every_mode_assembles_the_experts(void **state)
{
    (void)state;
    static const enum reader_mode modes[] = {READER_MMAP, READER_PREAD, READER_URING, READER_DIRECT};
    static const uint32_t depths[] = {1, 5, 0};
    static const char *const sources[] = {TINY, QWEN_HF};
    uint32_t n_skipped = 0;
    for (int s = 0; s < 2; s++) {
        struct fixture f;
        struct model_dir m;
        struct moeflux_err e = {0};
        begin_spread(&f, sources[s]);
        check_ok(model_dir_open(&m, f.dst, &e), &e);
        for (size_t i = 0; i < 4 * 3; i++) {
            struct reader *r;
            struct reader_options o = {.mode = modes[i / 3], .n_threads = 1, .depth = depths[i % 3]};
            int rc = reader_open(&r, &m, &o, &e);
            n_skipped += rc == ERR_UNSUPPORTED;
            if (rc == ERR_UNSUPPORTED && modes[i / 3] >= READER_URING)
                continue;
            check_ok(rc, &e);
            for (uint32_t layer = 0; layer < m.config.n_layers; layer++)
                wait_all(r, &m, start_all(r, &m, layer));
            reader_close(r);
        }
        model_dir_close(&m);
        end(&f);
    }
    if (n_skipped) {
        print_message("SKIP %u of 24: io_uring or direct reads do not work here\n", n_skipped);
        skip();
    }
}

/* Two disks. A read of one ends only when as many of the other have come: so each overlaps with one of the
 * other, and both disks take half the time. */
struct disks {
    pthread_mutex_t lock;
    pthread_cond_t came;
    uint32_t n_reads[2];
    bool alone; /* a read that nobody joined */
};

static int64_t read_batched(void *ctx, const struct read_part *p,
                            uint8_t *dst, /* NOLINT(readability-non-const-parameter): the hook's type */
                            int64_t result)
{
    enum { NEVER_S = 60 };
    struct disks *d = ctx;
    uint32_t disk = (p->extent.file - 1) % 2;
    struct timespec until;
    (void)dst;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += NEVER_S;
    pthread_mutex_lock(&d->lock);
    uint32_t turn = ++d->n_reads[disk];
    pthread_cond_broadcast(&d->came);
    while (d->n_reads[1 - disk] < turn && !d->alone)
        d->alone = pthread_cond_timedwait(&d->came, &d->lock, &until) == ETIMEDOUT;
    pthread_mutex_unlock(&d->lock);
    return result;
}

static void two_disks_read_at_the_same_time(void **state)
{
    (void)state;
    struct fixture f;
    struct model_dir m;
    struct moeflux_err e = {0};
    struct convert_result result;
    begin(&f, TINY);
    check_ok(
        convert_run(&(struct convert_options){.src = TINY, .dst = f.dst, .spread = f.parts[1]}, &result, &e),
        &e);
    check_ok(model_dir_open(&m, f.dst, &e), &e);
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct disks d = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};
        struct reader_hook hook = {read_batched, &d};
        struct reader *r;
        struct reader_options o = {.mode = READER_PREAD, .n_threads = n_threads, .hook = &hook};
        check_ok(reader_open(&r, &m, &o, &e), &e);
        for (uint32_t layer = 0; layer < 2; layer++)
            wait_all(r, &m, start_all(r, &m, layer));
        reader_close(r);
        assert_false(d.alone);
        assert_int_equal(d.n_reads[0], 64);
        assert_int_equal(d.n_reads[1], 64);
    }
    model_dir_close(&m);
    end(&f);
}

/* A model of one expert of 8 MiB of zeros, cut in two: a direct read of it is made in 16 pieces. */
struct large {
    char *tmp;
    struct model_dir m;
    struct config_layer layer;
    struct expert_layout expert;
    struct expert_place place;
    struct open_file files[2];
};

static void open_large(struct large *l)
{
    enum { MIB = 1 << 20 };
    static const char *const names[] = {"a", "b"};
    struct moeflux_err e = {0};
    *l = (struct large){.tmp = tmp_tree_new()};
    for (int i = 0; i < 2; i++) {
        const char *path = tmp_tree_path(l->tmp, names[i]);
        tmp_tree_write(l->tmp, names[i], "", 0);
        assert_int_equal(truncate(path, 4 * MIB), 0);
        l->files[i] = (struct open_file){.path = strdup(path)};
        l->files[i].fd = file_open_read(path, &l->files[i].bytes, &e);
        assert_true(l->files[i].fd >= 0);
    }
    uint64_t end = 8 * MIB;
    l->layer.n_blocks = 1;
    l->place = (struct expert_place){
        .n_runs = 2, .n_parts = 2, .runs = {{0, 0, 4 * MIB, 4 * MIB, 0}, {0, 0, 4 * MIB, 4 * MIB, 4 * MIB}}};
    l->expert = (struct expert_layout){.formats = {FORMAT_Q4, FORMAT_Q4, FORMAT_Q4},
                                       .gate_s = end,
                                       .gate_b = end,
                                       .up_w = end,
                                       .up_s = end,
                                       .up_b = end,
                                       .down_w = end,
                                       .down_s = end,
                                       .down_b = end,
                                       .bytes = end};
    l->m = (struct model_dir){.config = {.n_layers = 1,
                                         .n_experts = 1,
                                         .layers = &l->layer,
                                         .parts = {{.kind = PART_EXPERTS}},
                                         .n_parts = 1},
                              .files = l->files,
                              .n_files = 2,
                              .experts = &l->expert,
                              .max_expert_bytes = end,
                              .parts.spread = {2, 4 * MIB},
                              .places = &l->place};
}

static void close_large(struct large *l)
{
    for (int i = 0; i < 2; i++) {
        close(l->files[i].fd);
        free(l->files[i].path);
    }
    tmp_tree_remove(l->tmp);
}

struct sequence {
    uint32_t n, files[64];
};

static int64_t note_file(void *ctx, const struct read_part *p,
                         uint8_t *dst, /* NOLINT(readability-non-const-parameter): the hook's type */
                         int64_t result)
{
    struct sequence *s = ctx;
    (void)dst;
    if (s->n < 64)
        s->files[s->n++] = p->extent.file;
    return result;
}

/* One read at a time, so that they end in the order in which they began. */
static void pieces_of_a_large_expert_ask_the_disks_in_turn(void **state)
{
    (void)state;
    struct large l;
    struct reader *r;
    struct moeflux_err e = {0};
    struct sequence s = {0};
    struct reader_hook hook = {note_file, &s};
    struct reader_options o = {.mode = READER_DIRECT, .n_threads = 1, .depth = 1, .hook = &hook};
    open_large(&l);
    int rc = reader_open(&r, &l.m, &o, &e);
    if (rc == ERR_UNSUPPORTED) {
        print_message("SKIP %s\n", e.text);
        close_large(&l);
        skip();
    }
    check_ok(rc, &e);
    wait_all(r, &l.m, start_all(r, &l.m, 0));
    reader_close(r);
    assert_int_equal(s.n, 16);
    for (uint32_t i = 0; i < s.n; i++)
        assert_int_equal(s.files[i], i % 2);
    close_large(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_have_the_bytes_that_they_have_on_one_disk),
        cmocka_unit_test(every_expert_lies_in_all_parts_at_whole_blocks),
        cmocka_unit_test(layers_with_larger_experts_have_larger_pieces),
        cmocka_unit_test(every_part_has_the_checksums_of_its_files),
        cmocka_unit_test(lists_of_directories_that_cannot_be_are_refused),
        cmocka_unit_test(the_room_of_parts_on_one_disk_is_added_up),
        cmocka_unit_test(a_stopped_run_is_taken_up_again),
        cmocka_unit_test(a_killed_run_is_taken_up_again),
        cmocka_unit_test(a_layer_that_one_part_lost_is_written_again),
        cmocka_unit_test(a_run_that_ends_between_the_renames_is_taken_up_again),
        cmocka_unit_test(an_unfinished_run_with_other_directories_is_not_mixed_in),
        cmocka_unit_test(a_part_that_changed_on_the_disk_is_found_and_made_again),
        cmocka_unit_test(parts_that_are_missing_or_not_the_models_are_refused),
        cmocka_unit_test(a_part_that_was_moved_is_found_by_its_new_path),
        cmocka_unit_test(files_of_another_length_are_refused),
        cmocka_unit_test(descriptions_that_lie_are_refused_with_the_reason),
        cmocka_unit_test(every_mode_assembles_the_experts),
        cmocka_unit_test(pieces_of_a_large_expert_ask_the_disks_in_turn),
        cmocka_unit_test(two_disks_read_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
