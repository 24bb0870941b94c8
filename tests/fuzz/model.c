/* A model with one change, opened and run by the reference backend. The first byte says what the rest is:
 *   c  config.json
 *   m  model_weights.json
 *   p  config.json of a directory of safetensors
 *   h  the header of model.safetensors; its data stay
 *   w  changes of the weights: [file u8][offset u24][bytes u32] each; file 0: model_weights.bin,
 *      i: a layer's experts
 *
 * c, m and w change a small model as convert writes it; p and h one as mlx writes it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz/target.h"
#include "moeflux.h"
#include "small_model.h"
#include "tmp_tree.h"

#define MLX "tests/models/qwen3-odd/mlx"

enum { MAX_CHANGES = 64, CONTEXT = 64 };

/* A file as it is when nothing is changed. */
struct original {
    const char *dir, *path;
    uint8_t *bytes;
    size_t n;
};

struct models {
    const char *packed;
    struct original config, manifest, plain_config, safetensors;
};

static struct original read_original(const char *dir, const char *name)
{
    struct original o = {.dir = dir, .path = tmp_tree_path(dir, name)};
    o.bytes = tmp_tree_read(o.path, &o.n);
    return o;
}

static void make(struct models *m)
{
    const char *plain = tmp_tree_path(target_dir(), "plain");
    m->packed = small_model_make(target_new_dir("model"), 5);
    tmp_tree_copy(MLX, plain);
    m->config = read_original(m->packed, "config.json");
    m->manifest = read_original(m->packed, "model_weights.json");
    m->plain_config = read_original(plain, "config.json");
    m->safetensors = read_original(plain, "model.safetensors");
}

/* Opens the directory, and evaluates a prompt and a token where it opens. */
static void run(const char *dir)
{
    static const int32_t ids[] = {1, 2, 3, 4};
    struct moeflux_model *m = NULL;
    struct moeflux_session *s = NULL;
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = dir,
                                      .device = "reference",
                                      .n_threads = 1,
                                      .context = CONTEXT,
                                      .memory_bytes = 64 << 20,
                                      .gpu_memory_bytes = 256 << 20};
    if (!target_answered(moeflux_model_open(&m, &o, &e), &e))
        return;
    uint32_t vocab = moeflux_model_get_info(m).vocab_size;
    float *logits = calloc(vocab, sizeof *logits);
    if (logits && target_answered(moeflux_session_new(&s, m, CONTEXT, &e), &e)) {
        const struct moeflux_outputs out = {.logits = logits};
        if (target_answered(moeflux_session_eval(s, ids, 3, &out, &e), &e))
            target_answered(moeflux_session_eval(s, ids + 3, 1, &out, &e), &e);
        target_need(moeflux_session_position(s) <= 4, "more tokens than were evaluated");
    }
    moeflux_session_free(s);
    moeflux_model_close(m);
    free(logits);
}

static void run_with(const struct original *o, const uint8_t *data, size_t n)
{
    target_put(o->path, data, n);
    run(o->dir);
    target_put(o->path, o->bytes, o->n);
}

static void run_with_header(const struct original *o, const uint8_t *data, size_t n)
{
    uint64_t old, new = n;
    struct str file = {0};
    memcpy(&old, o->bytes, sizeof old);
    str_add(&file, (const char *)&new, sizeof new);
    str_add(&file, (const char *)data, n);
    str_add(&file, (const char *)o->bytes + 8 + old, o->n - 8 - old);
    run_with(o, (const uint8_t *)file.data, file.len);
    str_free(&file);
}

struct change {
    int fd;
    uint32_t at;
    uint8_t was[4];
};

static int open_weights(const char *dir, uint32_t file)
{
    char name[64];
    if (file == 0)
        snprintf(name, sizeof name, "model_weights.bin");
    else
        snprintf(name, sizeof name, "packed_experts/layer_%02u.bin", file - 1);
    return open(tmp_tree_path(dir, name), O_RDWR | O_CLOEXEC);
}

static void run_with_changes(const char *dir, const uint8_t *data, size_t n)
{
    static int fds[1 + SMALL_LAYERS];
    struct change done[MAX_CHANGES] = {0};
    size_t k = 0;
    for (uint32_t i = 0; fds[SMALL_LAYERS] == 0 && i < 1 + SMALL_LAYERS; i++)
        fds[i] = open_weights(dir, i);
    for (; k < MAX_CHANGES && 8 * (k + 1) <= n; k++) {
        const uint8_t *c = data + 8 * k;
        struct stat st;
        done[k].fd = fds[c[0] % (1 + SMALL_LAYERS)];
        target_need(fstat(done[k].fd, &st) == 0, "no weights");
        done[k].at =
            (uint32_t)((c[1] | (uint64_t)c[2] << 8 | (uint64_t)c[3] << 16) % (uint64_t)(st.st_size - 3));
        target_need(pread(done[k].fd, done[k].was, 4, done[k].at) == 4 &&
                        pwrite(done[k].fd, c + 4, 4, done[k].at) == 4,
                    "weights that cannot be changed");
    }
    run(dir);
    while (k-- > 0)
        target_need(pwrite(done[k].fd, done[k].was, 4, done[k].at) == 4, "weights that cannot be put back");
}

void target_model(const uint8_t *data, size_t n)
{
    static struct models m;
    if (!m.packed)
        make(&m);
    if (n == 0)
        return;
    switch (data[0]) {
    case 'c':
        run_with(&m.config, data + 1, n - 1);
        break;
    case 'm':
        run_with(&m.manifest, data + 1, n - 1);
        break;
    case 'p':
        run_with(&m.plain_config, data + 1, n - 1);
        break;
    case 'h':
        run_with_header(&m.safetensors, data + 1, n - 1);
        break;
    default:
        run_with_changes(m.packed, data + 1, n - 1);
        break;
    }
}
