/* Layers of multi-token prediction: a drafter's logits are those of a model whose embeddings are the
 * joined inputs and whose other layers add nothing. That model's layers agree with references of their own
 * (test_golden). With several residual streams no model has such an input; then logits are compared with
 * those that tests/models/families/make_mtp.py has computed with transformers' layers.
 *
 * suites: check cpu asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "convert/check.h"
#include "convert/convert.h"
#include "device.h"
#include "engine/run/drafter.h"
#include "engine/sequence.h"
#include "golden.h"
#include "model/model_dir.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { MOST_HIDDEN = 256, MOST_VOCAB = 512, N = 30, ROWS = N + 1, CONTEXT = 64, MOST_RANK = 64 };

/* Names in the file. */
struct names {
    const char *start, *layer; /* before the new tensors, and before those of the layer */
    const char *of_embedding, *of_hidden, *own, *join, *join_embedding, *join_hidden;
    const char *mix; /* the last mix of streams */
};
#define AS_NEXTN(n, last)                                                                                    \
    {                                                                                                        \
        .start = "model.layers." #n ".", .layer = "model.layers." #n ".", .of_embedding = "enorm",           \
        .of_hidden = "hnorm", .own = (last), .join = "eh_proj"                                               \
    }

static const struct source {
    const char *dir;
    uint32_t n_layers, like; /* layers of the model; the one that the new layer is a copy of */
    struct names names;
    bool has_codes;   /* MLX's */
    bool is_raw;      /* hidden states have no last norm */
    bool is_mixed;    /* the attention is a copy of layer 0's, which the reference has in layer `like`, too */
    bool is_less_one; /* norms are stored minus 1 */
    bool as_fp8;      /* BF16 matrices of layers become 8-bit floats */
    const char *golden; /* NULL: compared with a model */
} sources[] = {
    {"tests/models/sources/deepseek/mlx", 3, 2, AS_NEXTN(3, "shared_head.norm"), .has_codes = true},
    {"tests/models/sources/deepseek/hf", 3, 2, AS_NEXTN(3, "shared_head.norm"), .golden = NULL},
    {"tests/models/sources/deepseek/hf", 3, 2, AS_NEXTN(3, "shared_head.norm"), .as_fp8 = true},
    {"tests/models/families/glm-odd", 2, 1, AS_NEXTN(2, "shared_head.norm"), .has_codes = true},
    {"tests/models/families/glm-plain", 3, 2, AS_NEXTN(3, "shared_head.norm"), .has_codes = true},
    {"tests/models/families/glmlite-odd", 3, 2, AS_NEXTN(3, "shared_head.norm"), .has_codes = true},
    {"tests/models/families/glmlite-plain", 3, 2, AS_NEXTN(3, "shared_head.norm"), .has_codes = true},
    {"tests/models/families/glm5-mlx", 2, 1, AS_NEXTN(2, "shared_head.norm"), .has_codes = true},
    /* the last layer is dense, the second shares the first one's choice */
    {"tests/models/families/glm5-odd", 3, 0, AS_NEXTN(3, "shared_head.norm"), .golden = NULL},
    /* the last layer has no choice of its own */
    {"tests/models/families/glm5-plain", 3, 1, AS_NEXTN(3, "shared_head.norm"), .golden = NULL},
    {"tests/models/families/dsv32", 2, 1, AS_NEXTN(2, "shared_head.norm"), .golden = NULL},
    {"tests/models/families/ling-tiny", 3, 2, AS_NEXTN(3, "final_layernorm"), .golden = NULL},
    {"tests/models/families/qw4-plain",
     3,
     2,
     {"mtp.", "mtp.layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden",
      .join_embedding = "fc_embedding", .join_hidden = "fc_hidden", .mix = "hyper_connection_mixer"},
     .golden = "tests/models/families/qw4-mtp.golden.safetensors"},
    {"tests/models/families/mimo-odd",
     2,
     1,
     {.start = "model.mtp.layers.0.",
      .layer = "model.mtp.layers.0.",
      .of_embedding = "enorm",
      .of_hidden = "hnorm",
      .own = "final_layernorm",
      .join = "eh_proj"},
     .is_mixed = true},
    {"tests/models/families/step-plain", 3, 0, AS_NEXTN(3, "transformer.shared_head.norm"), .is_raw = true,
     .is_less_one = true},
    {"tests/models/families/glm53f-plain",
     4,
     3,
     {"model.language_model.layers.4.", "model.language_model.layers.4.", "enorm", "hnorm",
      "shared_head.norm", .join = "eh_proj"},
     .golden = "tests/models/families/glm53f-mtp.golden.safetensors"},
    {"tests/models/families/v4-odd",
     3,
     2,
     {"mtp.0.", "mtp.0.", "enorm", "hnorm", "norm", .join_embedding = "e_proj", .join_hidden = "h_proj",
      .mix = "hc_head"},
     .golden = "tests/models/families/v4-mtp.golden.safetensors"},
};

/* What the new tensors are made of. */
static struct {
    const struct source *source;
    uint32_t hidden, width, vocab, rank, n_streams;
    bool is_reference;
    float embedding[MOST_VOCAB * MOST_HIDDEN], join[2 * MOST_HIDDEN * MOST_HIDDEN];
    float last[MOST_HIDDEN], of_embedding[MOST_HIDDEN], of_hidden[MOST_HIDDEN], own[MOST_HIDDEN];
    float states[N * MOST_HIDDEN]; /* the model's hidden states, f32 [N][width] */
    float mix_norm[MOST_HIDDEN], mix_down[MOST_RANK * MOST_HIDDEN], mix_up[MOST_HIDDEN * MOST_RANK];
    float joined[MOST_VOCAB * MOST_HIDDEN];
    int32_t ids[ROWS];
} given;

static uint64_t seed;

static float draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(seed >> 40) / (1 << 23) - 1);
}

static void fill(float *to, size_t n, float middle, float spread)
{
    for (size_t i = 0; i < n; i++)
        to[i] = middle + spread * draw();
}

static void make_given(const struct source *s)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, s->dir, &e), &e);
    given.source = s;
    given.hidden = m.config.hidden;
    given.n_streams = s->names.mix ? m.config.streams.n : 1;
    given.width = given.n_streams * given.hidden;
    given.rank = m.config.streams.rank;
    given.vocab = m.config.vocab_size;
    model_dir_close(&m);
    seed = 7;
    size_t h = given.hidden, width = given.width;
    assert_true(width <= MOST_HIDDEN && given.rank <= MOST_RANK && given.vocab <= MOST_VOCAB &&
                given.vocab > ROWS);
    fill(given.embedding, given.vocab * h, 0, 1);
    fill(given.join, 2 * h * h, 0, 0.2f);
    fill(given.last, h, 1, 0.5f);
    fill(given.of_embedding, h, 1, 0.5f);
    fill(given.of_hidden, given.rank ? width : h, 1, 0.5f);
    fill(given.own, h, 1, 0.5f);
    fill(given.states, N * width, 0, 3);
    fill(given.mix_norm, width, 1, 0.5f);
    fill(given.mix_down, (given.rank ? given.rank : given.n_streams) * width, 0, 0.1f);
    fill(given.mix_up, given.rank * width, 0, 0.5f);
    for (int i = 0; i < ROWS; i++)
        given.ids[i] = (int32_t)((uint32_t)(i * 37 + 5) % given.vocab);
    memset(given.joined, 0, sizeof given.joined);
}

/* ---- the two models ---- */

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static void add_vector(struct st_writer *w, const char *name, const float *values, uint32_t n)
{
    char shape[32];
    snprintf(shape, sizeof shape, "[%u]", n);
    st_writer_add(w, name, "F32", shape, values, n * sizeof *values);
}

static void add_matrix(struct st_writer *w, const char *name, const float *values, uint32_t rows,
                       uint32_t cols)
{
    char shape[32];
    snprintf(shape, sizeof shape, "[%u, %u]", rows, cols);
    st_writer_add(w, name, "F32", shape, values, (size_t)rows * cols * sizeof *values);
}

/* Returns the name of one of the new tensors. */
static const char *new_name(const char *name, const char *end)
{
    static char full[96];
    snprintf(full, sizeof full, "%s%s%s", given.source->names.start, name, end);
    return full;
}

/* Adds one half of the columns of the matrix that joins. */
static void add_half(struct st_writer *w, const char *name, uint32_t first)
{
    uint32_t h = given.hidden;
    float *half = malloc((size_t)h * h * sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < h; i++)
        memcpy(half + i * h, given.join + i * 2 * h + first, h * sizeof *half);
    add_matrix(w, name, half, h, h);
    free(half);
}

static void add_mix(struct st_writer *w)
{
    const char *mix = given.source->names.mix;
    if (!given.rank) { /* the logits' scale and base are numbers of the norm */
        add_vector(w, new_name(mix, "_scale"), given.mix_norm, 1);
        add_vector(w, new_name(mix, "_base"), given.mix_norm + 1, given.n_streams);
        add_matrix(w, new_name(mix, "_fn"), given.mix_down, given.n_streams, given.width);
        return;
    }
    add_vector(w, new_name(mix, ".hc_norm.weight"), given.mix_norm, given.width);
    add_matrix(w, new_name(mix, ".input_mix_weight_down.weight"), given.mix_down, given.rank, given.width);
    add_matrix(w, new_name(mix, ".input_mix_weight_up.weight"), given.mix_up, given.width, given.rank);
}

/* Adds the tensors that only such a layer has; the last two are copies that the model does not need. */
static void add_join(struct st_writer *w)
{
    const struct names *n = &given.source->names;
    uint32_t h = given.hidden;
    add_vector(w, new_name(n->of_embedding, ".weight"), given.of_embedding, h);
    add_vector(w, new_name(n->of_hidden, ".weight"), given.of_hidden, given.rank ? given.width : h);
    if (n->own)
        add_vector(w, new_name(n->own, ".weight"), given.own, h);
    if (n->mix)
        add_mix(w);
    if (n->join) {
        add_matrix(w, new_name(n->join, ".weight"), given.join, h, 2 * h);
        add_matrix(w, new_name("embed_tokens", ".weight"), given.joined, given.vocab, h);
        add_matrix(w, new_name("shared_head.head", ".weight"), given.joined, given.vocab, h);
        return;
    }
    add_half(w, new_name(n->join_embedding, ".weight"), 0);
    add_half(w, new_name(n->join_hidden, ".weight"), h);
}

/* Adds a tensor of a layer; some become codes of 8-bit floats with a scale of 1 for each block. */
static void add_tensor(struct st_writer *w, const char *name, const struct tensor *t, const uint8_t *bytes)
{
    enum { BLOCK = 128 };
    char shape[64], scales_name[192];
    if (!given.source->as_fp8 || t->n_dims != 2 || !has(name, "_proj.weight")) {
        st_writer_add_like(w, name, t, bytes);
        return;
    }
    uint64_t n = t->shape[0] * t->shape[1];
    uint64_t high = (t->shape[0] + BLOCK - 1) / BLOCK, wide = (t->shape[1] + BLOCK - 1) / BLOCK;
    uint8_t *codes = malloc(n);
    float *scales = malloc(high * wide * sizeof *scales);
    assert_true(codes && scales);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t x = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        codes[i] = x == 0 ? 0 : (uint8_t)((x >> 8 & 0x80) | (x >> 4 & 0x37));
    }
    for (uint64_t i = 0; i < high * wide; i++)
        scales[i] = 0.05F + 0.01F * (float)(i % 5);
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)t->shape[0], (unsigned)t->shape[1]);
    st_writer_add(w, name, "F8_E4M3", shape, codes, n);
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)high, (unsigned)wide);
    snprintf(scales_name, sizeof scales_name, "%s_scale_inv", name);
    st_writer_add(w, scales_name, "F32", shape, scales, high * wide * sizeof *scales);
    free(codes);
    free(scales);
}

static void add_layer_tensor(struct st_writer *w, const struct tensor *t, const uint8_t *bytes,
                             uint32_t layer, const char *rest)
{
    static const char norm[] = "post_attention_layernorm.weight";
    char name[160];
    const struct source *s = given.source;
    bool is_like = layer == s->like, is_mixer = s->is_mixed && has(rest, "self_attn.");
    bool adds = has(rest, "o_proj.") || has(rest, "down_proj") || has(rest, ".dense.");
    if (given.is_reference && !is_like && adds) {
        uint8_t *zeros = calloc(t->bytes, 1);
        assert_non_null(zeros);
        add_tensor(w, t->name, t, zeros);
        free(zeros);
    } else if (!given.is_reference || !is_like || !is_mixer) {
        add_tensor(w, t->name, t, bytes);
    }
    bool is_copied = is_mixer ? !is_like : is_like && !given.is_reference;
    if (!is_copied || (!s->names.mix && has(rest, "hc_")))
        return;
    if (given.is_reference)
        snprintf(name, sizeof name, "model.layers.%u.%s", s->like, rest);
    else
        snprintf(name, sizeof name, "%s%s", s->names.layer,
                 s->is_mixed && !strcmp(rest, norm) ? "pre_mlp_layernorm.weight" : rest);
    add_tensor(w, name, t, bytes);
}

/* Returns what follows a layer's number in a name, NULL for another tensor's. */
static const char *in_layer(const char *name, uint32_t *layer)
{
    static const char *const starts[] = {"model.layers.", "model.language_model.layers.", "layers."};
    const char *rest = NULL;
    for (size_t i = 0; !rest && i < sizeof starts / sizeof *starts; i++) {
        size_t n = strlen(starts[i]);
        char *end = NULL;
        if (strncmp(name, starts[i], n) != 0)
            continue;
        *layer = (uint32_t)strtoul(name + n, &end, 10);
        rest = *end == '.' ? end + 1 : NULL;
    }
    return rest;
}

static void map(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    uint32_t layer = 0;
    if (!t && !given.is_reference)
        add_join(w);
    if (!t)
        return;
    const char *name = t->name, *rest = in_layer(name, &layer);
    bool is_embedding =
        has(name, "embed_tokens.") || has(name, "word_embeddings.") || !strcmp(name, "embed.weight");
    if ((rest && layer >= given.source->n_layers) || (!rest && strncmp(name, "mtp.", 4) == 0))
        return;
    if (rest)
        add_layer_tensor(w, t, bytes, layer, rest);
    else if (!strcmp(name, "norm.weight") || str_ends_with(name, "model.norm.weight"))
        add_vector(w, name, given.is_reference ? given.own : given.last, given.hidden);
    else if (!is_embedding)
        st_writer_add_like(w, name, t, bytes);
    else if (str_ends_with(name, ".weight"))
        add_matrix(w, name, given.is_reference ? given.joined : given.embedding, given.vocab, given.hidden);
}

/* Writes the checkpoint into `dir`. */
static void write_model(const char *dir)
{
    st_writer_rewrite(given.source->dir, dir, map);
    if (given.source->is_mixed && given.is_reference)
        tmp_tree_replace(dir, "config.json", "\"full_attention\"\n", "\"sliding_attention\"\n");
    if (given.source->as_fp8)
        tmp_tree_replace(dir, "config.json", "\"hidden_act\"",
                         "\"quantization_config\": {\"fmt\": \"e4m3\", \"quant_method\": \"fp8\", "
                         "\"weight_block_size\": [128, 128]}, \"hidden_act\"");
}

static int open_model(struct moeflux_model **m, const char *dir, bool drafts, struct moeflux_err *e)
{
    const struct moeflux_options o = {
        .dir = dir, .device = device_name(), .drafter = drafts, .kv_type = MOEFLUX_KV_TYPE_F32};
    return moeflux_model_open(m, &o, e);
}

/* ---- the reference's input ---- */

static void normalise(const float *x, const float *weight, double eps, float *to)
{
    double sum = 0;
    for (uint32_t i = 0; i < given.hidden; i++)
        sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < given.hidden; i++)
        to[i] = (float)((double)x[i] / sqrt(sum / given.hidden + eps) *
                        ((double)weight[i] + (given.source->is_less_one ? 1 : 0)));
}

/* Joins the embedding of a row's token and a hidden state, which gets the norm `last` first. */
static void join(uint32_t row, const float *state, const float *last, double eps)
{
    float both[2 * MOST_HIDDEN], normed[MOST_HIDDEN];
    uint32_t h = given.hidden;
    normalise(given.embedding + (size_t)given.ids[row] * h, given.of_embedding, eps, both);
    normalise(state, last, eps, normed);
    normalise(given.source->is_raw ? state : normed, given.of_hidden, eps, both + h);
    for (uint32_t i = 0; i < h; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < 2 * h; k++)
            sum += (double)given.join[(size_t)i * 2 * h + k] * (double)both[k];
        given.joined[(size_t)row * h + i] = (float)sum;
    }
}

/* ---- the comparison ---- */

static void eval(struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_outputs out)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_eval(s, ids, n, &out, &e), &e);
}

/* Rows after which logits are compared: a chunk, single tokens, a chunk, the layer's own hidden state. */
static const uint32_t ends[] = {9, 10, 11, N, ROWS};
enum { N_ENDS = sizeof ends / sizeof *ends };
struct logits {
    float of[N_ENDS][MOST_VOCAB];
};
static struct logits drafted, converted;
static float expected[MOST_VOCAB];

static void draft(const char *dir, struct logits *to)
{
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(open_model(&m, dir, true, &e), &e);
    double eps = (double)m->dir.config.rms_eps;
    check_ok(moeflux_session_new(&s, m->drafter, CONTEXT, &e), &e);
    for (int i = 0; i < N_ENDS; i++) {
        bool is_own = s->pos == N;
        s->drafter.fed = is_own ? s->drafter.own : given.states + (size_t)s->pos * given.width;
        s->drafter.fed_pos = s->pos;
        s->drafter.fed_is_own = is_own;
        if (is_own && !given.source->golden)
            join(N, s->drafter.own, given.own, eps);
        eval(s, given.ids + s->pos, ends[i] - s->pos, (struct moeflux_outputs){.logits = to->of[i]});
    }
    for (uint32_t i = 0; i < N && !given.source->golden; i++)
        join(i, given.states + (size_t)i * given.hidden, given.last, eps);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void expect_near(const float *found, const float *wanted, double most, uint32_t row)
{
    double largest = 0, off = 0;
    for (uint32_t k = 0; k < given.vocab; k++) {
        largest = fmax(largest, fabs((double)wanted[k]));
        off = fmax(off, fabs((double)found[k] - (double)wanted[k]));
    }
    if (!(off <= most * largest) || largest == 0)
        fail_msg("%s, after row %u: logits differ by %g, the largest is %g", given.source->dir, row, off,
                 largest);
}

static void compare(const char *dir)
{
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(open_model(&m, dir, false, &e), &e);
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    for (int i = 0; i < N_ENDS; i++) {
        int32_t ids[ROWS];
        for (uint32_t k = 0; k < ROWS; k++)
            ids[k] = (int32_t)k;
        eval(s, ids + s->pos, ends[i] - s->pos, (struct moeflux_outputs){.logits = expected});
        expect_near(drafted.of[i], expected, 1e-4, ends[i]);
    }
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void compare_golden(void)
{
    struct golden g;
    golden_open(&g, given.source->golden);
    const struct golden_tensor *logits = golden_find(&g, 0, "logits");
    assert_true(logits && logits->shape[0] == N_ENDS && logits->shape[1] == given.vocab);
    for (size_t i = 0; i < N_ENDS; i++)
        expect_near(drafted.of[i], (const float *)logits->data + i * given.vocab, 1e-4, ends[i]);
    golden_close(&g);
}

static void logits_are_those_of_the_layer_by_itself(void **unused)
{
    (void)unused;
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char name[32];
        make_given(&sources[i]);
        for (int is_reference = 0; is_reference < (sources[i].golden ? 1 : 2); is_reference++) {
            snprintf(name, sizeof name, "%zu-%d", i, is_reference);
            const char *dir = tmp_tree_path(tmp, name);
            given.is_reference = is_reference;
            write_model(dir);
            if (is_reference)
                compare(dir);
            else
                draft(dir, &drafted);
        }
        if (sources[i].golden)
            compare_golden();
    }
    tmp_tree_remove(tmp);
}

/* Conversion copies codes and makes others of 8 bits. */
static void converted_layers_have_the_same_logits(void **unused)
{
    (void)unused;
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char name[32];
        struct convert_result r;
        struct moeflux_err e = {0};
        make_given(&sources[i]);
        given.is_reference = false;
        snprintf(name, sizeof name, "%zu", i);
        const char *dir = tmp_tree_path(tmp, name), *packed = tmp_tree_path(dir, "packed");
        write_model(dir);
        draft(dir, &drafted);
        bool has_codes = sources[i].has_codes;
        const struct convert_options o = {
            .src = dir, .dst = packed, .settings.bits = has_codes ? 0 : 8, .verify = true};
        check_ok(convert_run(&o, &r, &e), &e);
        assert_true(r.has_drafter);
        draft(packed, &converted);
        for (int k = 0; k < N_ENDS; k++)
            expect_near(converted.of[k], drafted.of[k], has_codes ? 1e-5 : 0.05, ends[k]);
        check_ok(convert_check(&(struct convert_check){.dir = packed}, &e), &e);
        tmp_tree_replace(tmp_tree_path(packed, "mtp"), "config.json", "{", " {");
        assert_int_equal(convert_check(&(struct convert_check){.dir = packed}, &e), ERR_IO);
    }
    tmp_tree_remove(tmp);
}

/* Proposes after the sequence's tokens. */
static void propose(struct moeflux_session *s, int32_t out[3])
{
    struct moeflux_err e = {0};
    int n = drafter_propose(s, given.ids[s->pos], 3, out, &e);
    check_ok(n < 0 ? n : 0, &e);
    assert_int_equal(n, 3);
}

static void rows_of(const char *dir, const char *state)
{
    enum { TOKENS = 12 };
    struct moeflux_model *m;
    struct moeflux_session *s, *fork, *loaded;
    struct moeflux_err e = {0};
    int32_t first[3], found[3];
    check_ok(open_model(&m, dir, true, &e), &e);
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    check_ok(moeflux_session_new(&fork, m, CONTEXT, &e), &e);
    check_ok(moeflux_session_new(&loaded, m, CONTEXT, &e), &e);
    eval(s, given.ids, TOKENS - 3, (struct moeflux_outputs){0});
    eval(s, given.ids + TOKENS - 3, 3, (struct moeflux_outputs){0});
    check_ok(moeflux_session_checkpoint(s, &e), &e);
    check_ok(moeflux_session_save(s, state, MOEFLUX_STATE_V3, &e), &e);
    check_ok(moeflux_session_fork(fork, s, TOKENS, &e), &e);
    propose(s, first);
    assert_int_equal(s->drafter.rows->pos, TOKENS);
    propose(fork, found);
    assert_memory_equal(found, first, sizeof first);
    check_ok(moeflux_session_load(loaded, state, &e), &e);
    assert_int_equal(loaded->drafter.rows->pos + loaded->drafter.n, TOKENS);
    propose(loaded, found);
    assert_memory_equal(found, first, sizeof first);
    moeflux_session_free(s);
    moeflux_session_free(fork);
    moeflux_session_free(loaded);
    moeflux_model_close(m);
}

/* Calls `check` with each model that has reference outputs or a copied mixer, and a path for a state. */
static void each_given(void (*check)(const char *dir, const char *state))
{
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char name[32];
        if (!sources[i].golden && !sources[i].is_mixed)
            continue;
        make_given(&sources[i]);
        given.is_reference = false;
        snprintf(name, sizeof name, "%zu", i);
        const char *dir = tmp_tree_path(tmp, name);
        write_model(dir);
        check(dir, tmp_tree_path(tmp, "state"));
    }
    tmp_tree_remove(tmp);
}

static void forks_and_saved_states_have_the_rows(void **unused)
{
    (void)unused;
    each_given(rows_of);
}

static void save(struct moeflux_session *s, const char *path, uint8_t **bytes, size_t *n)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
    *bytes = tmp_tree_read(path, n);
}

/* A chain of proposals leaves what a single one does, after which no row is dropped. */
static void dropped_rows_of(const char *dir, const char *path)
{
    enum { PROMPT = 9, TOKENS = 22 };
    struct moeflux_model *m;
    struct moeflux_session *s, *single;
    struct moeflux_err e = {0};
    int32_t out[3];
    size_t n, n_single;
    uint8_t *bytes, *bytes_single;
    check_ok(open_model(&m, dir, true, &e), &e);
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    check_ok(moeflux_session_new(&single, m, CONTEXT, &e), &e);
    eval(s, given.ids, PROMPT, (struct moeflux_outputs){0});
    eval(single, given.ids, PROMPT, (struct moeflux_outputs){0});
    for (uint32_t i = PROMPT; i < TOKENS; i++) {
        uint32_t most = 1 + i % 3;
        assert_int_equal(drafter_propose(s, given.ids[i], most, out, &e), most);
        assert_int_equal(drafter_propose(single, given.ids[i], 1, out, &e), 1);
        eval(s, given.ids + i, 1, (struct moeflux_outputs){0});
        eval(single, given.ids + i, 1, (struct moeflux_outputs){0});
    }
    save(s, path, &bytes, &n);
    save(single, path, &bytes_single, &n_single);
    assert_int_equal(n, n_single);
    assert_memory_equal(bytes, bytes_single, n);
    free(bytes);
    free(bytes_single);
    moeflux_session_free(s);
    moeflux_session_free(single);
    moeflux_model_close(m);
}

static void dropped_rows_leave_no_states(void **unused)
{
    (void)unused;
    each_given(dropped_rows_of);
}

static void a_checkpoint_without_the_layer_is_named(void **unused)
{
    (void)unused;
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    assert_int_equal(open_model(&m, "tests/models/families/glm-odd", true, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "model.layers.2.eh_proj.weight"));
    assert_int_equal(open_model(&m, "tests/models/families/minimax-plain", true, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "MiniMax-M2 has no layer of multi-token prediction"));
    assert_int_equal(open_model(&m, "tests/models/families/m3-odd", true, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "not published"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_layer_by_itself),
        cmocka_unit_test(converted_layers_have_the_same_logits),
        cmocka_unit_test(forks_and_saved_states_have_the_rows),
        cmocka_unit_test(dropped_rows_leave_no_states),
        cmocka_unit_test(a_checkpoint_without_the_layer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
