/* A GGUF file: its headers, its lists, the model and the tokenizer that it is as it lies, and what a
 * conversion makes of it before it writes anything. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/format.h"
#include "model/gguf/config.h"
#include "convert/gguf/source.h"
#include "text/tokenizer/gguf_vocab.h"
#include "fuzz/target.h"
#include "model/config.h"
#include "model/config_read.h"
#include "base/gguf.h"
#include "model/model_dir.h"
#include "model/tensor.h"
#include "text/tokenizer/tokenizer.h"

enum { SOME = 512, GROUP = 32 };

static void use_values(const struct gguf *g)
{
    struct moeflux_err e = {0};
    for (size_t i = 0; i < g->n_values; i++) {
        const struct gguf_value *v = &g->values[i];
        struct gguf_texts texts;
        struct str text = {0};
        char *whole = NULL;
        uint32_t *list = NULL;
        uint64_t *wide = NULL, n = 0;
        int rc = 1;
        target_need(gguf_find(g, v->key) == v, "a value that is not found");
        if (target_answered(gguf_text(g, v, 1 << 20, &whole, &e), &e))
            target_need(strlen(whole) == v->bytes, "a text of another length");
        target_answered(gguf_u32_list(g, v, &list, &e), &e);
        target_answered(gguf_u64_list(g, v, &wide, &e), &e);
        if (target_answered(gguf_texts_open(&texts, g, v, &e), &e))
            while ((rc = gguf_texts_next(&texts, &text, &e)) > 0)
                n++;
        target_need(rc != 0 || n == v->n, "a list of another length");
        gguf_texts_close(&texts);
        str_free(&text);
        free(list);
        free(wide);
        free(whole);
    }
}

/* The first and the last numbers, as numbers and as codes. */
static void use_tensor(const struct gguf_source *s, const struct tensor *t)
{
    float numbers[SOME];
    uint8_t codes[SOME];
    float scales[SOME / GROUP], biases[SOME / GROUP];
    const struct convert_codes to = {codes, scales, biases};
    struct moeflux_err e = {0};
    uint64_t all = t->bytes / sizeof(float), n = all < SOME ? all : SOME;
    target_answered(gguf_source_read(s, t, 0, n, numbers, &e), &e);
    target_answered(gguf_source_read(s, t, all - n, n, numbers, &e), &e);
    if (format_of(t->format)->scheme == SCHEME_PLAIN || !gguf_source_holds(s, t, t->format))
        return;
    n -= n % GROUP;
    target_answered(gguf_source_codes(s, t, 0, n, t->format, &to, NULL, &e), &e);
}

static void use_source(struct gguf_source *s, const struct config *c)
{
    struct model_dir m = {.path = s->file.files[0].path, .config = *c};
    struct moeflux_err e = {0};
    if (target_answered(gguf_source_open(s, &m, &e), &e))
        for (size_t i = 0; i < m.n_tensors; i++)
            if (m.tensors[i].dtype == DTYPE_GGUF)
                use_tensor(s, &m.tensors[i]);
    struct tensor_list l = {m.tensors, m.n_tensors, m.n_tensors};
    tensor_list_free(&l);
    gguf_source_close(s, &m);
}

static void use_vocab(const struct gguf *g)
{
    struct str text = {0};
    struct moeflux_err e = {0};
    target_answered(gguf_vocab_tokenizer(g, &text, &e), &e);
    str_clear(&text);
    target_answered(gguf_vocab_config(g, &text, &e), &e);
    str_clear(&text);
    target_answered(gguf_vocab_template(g, &text, &e), &e);
    str_free(&text);
}

/* Every expert of a layer lies in its file and in its slot. */
static void use_experts(const struct model_dir *m, uint32_t layer)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    const uint32_t some[] = {0, m->config.n_experts - 1};
    for (int k = 0; k < 2; k++) {
        uint32_t n = model_dir_expert(m, layer, some[k], x);
        for (uint32_t i = 0; i < n; i++)
            target_need(x[i].off + x[i].bytes <= m->files[x[i].file].bytes &&
                            x[i].at + x[i].bytes <= m->experts[layer].bytes,
                        "an expert outside of its file or slot");
    }
}

/* The last bytes, the numbers of a plain tensor and those of a block. */
static void use_bytes(const struct model_dir *m, const struct tensor *t)
{
    struct moeflux_err e = {0};
    uint8_t bytes[SOME];
    float numbers[SOME];
    uint64_t n_bytes = t->bytes < SOME ? t->bytes : SOME;
    const struct format *f = t->dtype == DTYPE_BLOCKS ? format_of(t->format) : NULL;
    target_answered(model_dir_read(m, t, t->bytes - n_bytes, n_bytes, bytes, &e), &e);
    if (tensor_is_float(t->dtype) && t->bytes / tensor_dtype_bytes(t->dtype) <= SOME)
        target_answered(model_dir_read_f32(m, t, numbers, &e), &e);
    if (f && target_answered(model_dir_read(m, t, 0, format_all_bytes(f, f->group), bytes, &e), &e))
        format_decode(f, bytes, NULL, NULL, 0, f->group, numbers);
}

static void use_in_place(const char *path)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    if (!target_answered(model_dir_open(&m, path, &e), &e))
        return;
    for (size_t i = 0; i < m.n_tensors; i++)
        use_bytes(&m, &m.tensors[i]);
    for (uint32_t i = 0; i < m.config.n_layers; i++)
        if (config_has_experts(&m.config, i))
            use_experts(&m, i);
    if (m.tokenizer_path) {
        struct tokenizer *t = tokenizer_open(m.tokenizer_path, &e);
        target_answered(t ? 0 : (int)e.code, &e);
        tokenizer_free(t);
    }
    model_dir_close(&m);
}

void target_gguf(const uint8_t *data, size_t n)
{
    struct gguf_source s = {.places = NULL};
    struct moeflux_err e = {0};
    struct config c;
    json_t *config = NULL;
    const char *path = target_file(data, n);
    if (!target_answered(gguf_open(&s.file, path, &e), &e))
        return;
    use_in_place(path);
    use_values(&s.file);
    use_vocab(&s.file);
    if (target_answered(gguf_config_make(&s.file, &config, &e), &e) &&
        target_answered(config_read(&c, config, "x.gguf", &e), &e)) {
        use_source(&s, &c);
        config_free(&c);
    }
    json_decref(config);
    gguf_close(&s.file);
}
