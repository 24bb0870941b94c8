#include "convert/convert.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "convert/dense.h"
#include "convert/experts.h"
#include "convert/json.h"
#include "convert/parts.h"
#include "convert/plan.h"
#include "convert/target.h"
#include "convert/verify.h"
#include "convert/work.h"
#include "model/drafter.h"
#include "model/gguf/config.h"
#include "text/tokenizer/gguf_vocab.h"

/* Bytes for JSON, tokenizer and directories; a tokenizer.json has 7 to 20 MB. */
#define ROOM_FOR_SMALL_FILES ((uint64_t)64 << 20)
#define MAX_SMALL_FILE       ((uint64_t)256 << 20)

/* Files that are copied if the source has them. */
static const char *const small_files[] = {
    "tokenizer.json",          "tiktoken.model",      "tokenizer_config.json",
    "generation_config.json",  "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
    "chat_template.json",      "vocab.json",          "merges.txt",
    "special_tokens_map.json", "added_tokens.json",
};
enum { N_SMALL_FILES = sizeof small_files / sizeof *small_files };

struct conversion {
    struct convert_plan plan;
    struct convert_parts parts;
    struct convert_work work;
    struct convert_result *result;
};

/* --- before writing --- */

/* Computes the bytes that each part needs. A layer that one part lacks is rewritten in all of them. */
static void room_needed(const struct conversion *c, uint64_t need[SPREAD_MAX_PARTS])
{
    const struct convert_plan *p = &c->plan;
    uint64_t layers = 0;
    for (uint32_t i = 0; i < p->src.config.n_layers; i++)
        if (config_has_experts(&p->src.config, i) && !convert_parts_have(&c->parts, i))
            layers += convert_parts_layer_bytes(&c->parts, i);
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        need[i] = layers;
    need[0] += ROOM_FOR_SMALL_FILES;
    if (!convert_target_find(&c->parts.targets[0], CONVERT_WEIGHTS, p->weights_bytes))
        need[0] += p->weights_bytes;
}

/* Small files that are made from a GGUF file's metadata. */
static const struct gguf_text {
    const char *name;
    int (*make)(const struct gguf *g, struct str *out, struct moeflux_err *e);
} gguf_texts[] = {{"tokenizer.json", gguf_vocab_tokenizer},
                  {"tokenizer_config.json", gguf_vocab_config},
                  {"chat_template.jinja", gguf_vocab_template}};
enum { N_GGUF_TEXTS = sizeof gguf_texts / sizeof *gguf_texts };

/* Checks that they can be made, before hours are spent on the experts. */
static int check_gguf_texts(const struct gguf *g, struct moeflux_err *e)
{
    int rc = 0;
    for (int i = 0; i < N_GGUF_TEXTS && rc == 0 && gguf_config_has_tokenizer(g); i++) {
        struct str text = {0};
        rc = gguf_texts[i].make(g, &text, e);
        str_free(&text);
    }
    return rc;
}

static int prepare(struct conversion *c, const struct convert_options *o, bool drafts, struct moeflux_err *e)
{
    uint64_t need[SPREAD_MAX_PARTS];
    int rc = drafts ? convert_plan_open_drafter(&c->plan, o->src, o->drafter_file, e)
                    : convert_plan_open(&c->plan, o->src, &o->settings, e);
    if (rc == 0 && c->plan.src.is_gguf && !drafts)
        rc = check_gguf_texts(&c->plan.gguf.file, e);
    if (rc < 0)
        return rc;
    rc = convert_parts_open(&c->parts, &c->plan, o->dst, o->spread, e);
    if (rc < 0)
        return rc;
    room_needed(c, need);
    rc = convert_parts_check_room(&c->parts, need, e);
    if (rc == 0)
        rc = convert_work_start(&c->work, o->n_threads, c->plan.expert_room, &o->progress, e);
    return rc < 0 ? rc : convert_parts_begin(&c->parts, e);
}

/* --- writing --- */

static int write_experts(struct conversion *c, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < c->plan.src.config.n_layers && rc == 0; i++) {
        bool kept = false;
        if (config_has_experts(&c->plan.src.config, i))
            rc = convert_experts_write(&c->plan, i, &c->parts, &c->work, &kept, e);
        c->result->n_layers_kept += kept;
    }
    return rc;
}

/* Writes `text` and frees it; NULL: `e` is filled already. */
static int put_text(struct conversion *c, uint32_t part, const char *name, char *text, size_t n,
                    struct moeflux_err *e)
{
    if (!text)
        return ERR_MEMORY;
    int rc = convert_target_put(&c->parts.targets[part], name, text, n, e);
    convert_work_advance(&c->work, 0, 0, n);
    free(text);
    return rc;
}

static int put_json(struct conversion *c, uint32_t part, const char *name, char *text, struct moeflux_err *e)
{
    return put_text(c, part, name, text, text ? strlen(text) : 0, e);
}

static int make_gguf_texts(struct conversion *c, struct moeflux_err *e)
{
    const struct gguf *g = &c->plan.gguf.file;
    int rc = 0;
    for (int i = 0; i < N_GGUF_TEXTS && rc == 0 && gguf_config_has_tokenizer(g); i++) {
        struct str text = {0};
        rc = gguf_texts[i].make(g, &text, e);
        if (rc == 0 && text.len > 0)
            rc = put_text(c, 0, gguf_texts[i].name, text.data, text.len, e);
        else
            str_free(&text);
    }
    return rc;
}

static int copy_small_files(struct conversion *c, struct moeflux_err *e)
{
    for (int i = 0; i < N_SMALL_FILES; i++) {
        char *text = NULL, *path = file_join(c->plan.src.path, small_files[i], e);
        size_t n;
        int rc = path ? 0 : ERR_MEMORY;
        if (path && file_exists(path)) {
            rc = file_read_text(path, MAX_SMALL_FILE, &text, &n, e);
            if (rc == 0)
                rc = put_text(c, 0, small_files[i], text, n, e);
        }
        free(path);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Writes part.json of the other directories and spread.json, which names them. */
static int write_parts(struct conversion *c, struct moeflux_err *e)
{
    uint64_t id = convert_parts_id(&c->parts);
    int rc = 0;
    if (c->parts.spread.n_parts == 1)
        return 0;
    for (uint32_t i = 1; i < c->parts.spread.n_parts && rc == 0; i++) {
        const struct convert_target *t = &c->parts.targets[i];
        rc = put_json(c, i, SPREAD_PART_FILE, convert_json_part(&c->parts, id, i, e), e);
        if (rc == 0)
            rc = put_json(c, i, CONVERT_CHECKSUMS, convert_json_checksums(t, e), e);
    }
    return rc < 0 ? rc : put_json(c, 0, SPREAD_FILE, convert_json_spread(&c->parts, id, e), e);
}

static int write_small_files(struct conversion *c, struct moeflux_err *e)
{
    int rc = put_json(c, 0, "packed_experts/layout.json", convert_json_layout(&c->plan, e), e);
    if (rc == 0)
        rc = put_json(c, 0, "config.json", convert_json_config(&c->plan, e), e);
    if (rc == 0 && !c->plan.drafts)
        rc = c->plan.src.is_gguf ? make_gguf_texts(c, e) : copy_small_files(c, e);
    if (rc == 0)
        rc = write_parts(c, e);
    /* Without its manifest a directory does not open as a packed one, so the manifest is written last. */
    if (rc == 0)
        rc = put_json(c, 0, "model_weights.json", convert_json_manifest(&c->plan, e), e);
    return rc < 0 ? rc
                  : put_json(c, 0, CONVERT_CHECKSUMS, convert_json_checksums(&c->parts.targets[0], e), e);
}

static int write_all(struct conversion *c, bool verify, struct moeflux_err *e)
{
    const struct convert_plan *p = &c->plan;
    convert_work_step(&c->work, "converting", p->dense_source_bytes + p->expert_source_bytes);
    int rc = convert_dense_write(p, &c->parts.targets[0], &c->work, e);
    if (rc == 0)
        rc = write_experts(c, e);
    if (rc == 0)
        rc = write_small_files(c, e);
    if (rc == 0 && verify)
        rc = convert_verify(p, &c->parts, &c->work, e);
    if (rc == 0)
        rc = convert_plan_check_source(p, e);
    return rc < 0 ? rc : convert_parts_commit(&c->parts, e);
}

static int run(const struct convert_options *o, bool drafts, struct convert_result *r, struct moeflux_err *e);

/* Converts the drafter into a directory of the unfinished model. One that an earlier run has finished stays:
 * the model's state has the same source. */
static int write_drafter(struct conversion *c, const struct convert_options *o, struct moeflux_err *e)
{
    struct convert_options own = *o;
    struct convert_result r = {0};
    char *dst = file_join(c->parts.targets[0].partial, DRAFTER_DIR, e);
    int rc = dst ? 0 : ERR_MEMORY;
    own.dst = dst;
    own.spread = NULL;
    if (rc == 0 && !file_exists(dst))
        rc = run(&own, true, &r, e);
    c->result->has_drafter = rc == 0;
    c->result->bytes_read += r.bytes_read;
    c->result->bytes_written += r.bytes_written;
    free(dst);
    return rc;
}

/* Fills in what the result says about the source. */
static void count_source(const struct conversion *c)
{
    const struct convert_plan *p = &c->plan;
    for (size_t i = 0; i < p->n_items; i++)
        c->result->n_tensors += p->items[i].n_out;
    c->result->n_expert_layers = p->n_expert_layers;
    c->result->n_left_out = (uint32_t)p->src.n_left_out;
    c->result->n_parts = c->parts.spread.n_parts;
}

/* Converts the model `src`, or its drafter. *r is zeroed. */
static int run(const struct convert_options *o, bool drafts, struct convert_result *r, struct moeflux_err *e)
{
    struct conversion c = {.result = r};
    convert_parts_init(&c.parts);
    int rc = prepare(&c, o, drafts, e);
    if (rc == 0) {
        count_source(&c);
        if ((c.plan.src.has_drafter || o->drafter_file) && !drafts && !o->no_drafter)
            rc = write_drafter(&c, o, e);
        if (rc == 0)
            rc = write_all(&c, o->verify, e);
        r->bytes_read += c.work.bytes_read;
        r->bytes_written += c.work.bytes_written;
        r->errors = c.work.errors;
        r->n_fewer = c.plan.choice[0].n_fewer + c.plan.choice[1].n_fewer;
        if (rc == ERR_INTERRUPTED)
            err_set(e, ERR_INTERRUPTED, "interrupted; %s keeps what is finished for the next run",
                    c.parts.targets[0].partial);
    }
    convert_work_end(&c.work);
    convert_parts_close(&c.parts);
    convert_plan_close(&c.plan);
    return rc;
}

int convert_run(const struct convert_options *o, struct convert_result *r, struct moeflux_err *e)
{
    *r = (struct convert_result){0};
    return run(o, false, r, e);
}
