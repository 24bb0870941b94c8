#include "convert/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/family.h"
#include "model/quant_config.h"
#include "model/table.h"
#include "model/tensor.h"

/* Returns the format of the router and the shared expert's gate. MLX has groups of 64 there. */
static uint32_t gate_format(const struct family *f)
{
    return format_find_affine(f->gate_bits, format_of(CONVERT_DEFAULT_FORMAT)->group, SCALE_BF16);
}

static bool is_gate(const struct convert_plan *p, const char *name)
{
    char base[160];
    size_t n = strlen(name), tail = strlen(".weight");
    if (!str_ends_with(name, ".weight") || n - tail >= sizeof base)
        return false;
    snprintf(base, sizeof base, "%.*s", (int)(n - tail), name);
    return family_is_gate(p->src.config.family, base, p->src.config.streams.rank);
}

/* Returns whether rows are whole groups, and a multiple of the columns that operations take at once. */
static bool fits(const struct format *f, uint64_t cols)
{
    return format_takes_cols(f, cols) && cols % PRODUCT_COLS == 0;
}

static int check_group(const struct convert_wish *w, const char *what, uint64_t cols, struct moeflux_err *e)
{
    if (!w->group || cols % w->group == 0)
        return 0;
    return err_set(e, ERR_USAGE, "%s: %u columns, which %s %u does not divide", what, (uint32_t)cols,
                   w->asked_group, w->group);
}

/* Notes a matrix that stays although another format was requested. The message is about the first one. */
static void note_unmet(struct convert_choice *c, const struct convert_wish *w, const char *what,
                       const struct format *has)
{
    bool fewer = has->bits < w->bits;
    c->n_fewer += fewer;
    if (c->unmet.text[0])
        return;
    if (fewer)
        err_set(&c->unmet, ERR_USAGE, "%s: %u bits, fewer than %s asks for (%u)", what, has->bits, w->asked,
                w->bits);
    else if (w->has_mode && has != format_of(w->format))
        err_set(&c->unmet, ERR_USAGE, "%s: %u bits already; %s %s changes those of more bits alone", what,
                has->bits, w->asked, quant_config_mode_name(quant_config_format_mode(w->format)));
    else if (w->group && w->group != has->group)
        err_set(&c->unmet, ERR_USAGE,
                "%s: %u bits in groups of %u already; %s %u changes those of fewer bits alone", what,
                has->bits, has->group, w->asked_group, w->group);
}

/* Returns the new format of a quantised matrix; its own: it stays. */
static uint32_t lower(struct convert_plan *p, const struct convert_wish *w, uint32_t from, const char *what)
{
    const struct format *has = format_of(from);
    struct convert_choice *c = &p->choice[w->by_expert_bits];
    if (!w->bits)
        return from;
    if (has->bits <= w->bits) {
        note_unmet(c, w, what, has);
        return from;
    }
    c->n_lowered++;
    if (w->has_mode)
        return w->format;
    uint32_t group = w->group                       ? w->group
                     : has->scheme == SCHEME_AFFINE ? has->group
                                                    : format_of(CONVERT_DEFAULT_FORMAT)->group;
    return format_find_affine(w->bits, group, SCALE_BF16);
}

/* Returns the format that unquantised numbers get. */
static uint32_t quantised(const struct convert_wish *w)
{
    const struct format *usual = format_of(CONVERT_DEFAULT_FORMAT);
    if (w->has_mode)
        return w->format;
    return format_find_affine(w->bits ? w->bits : usual->bits, w->group ? w->group : usual->group,
                              SCALE_BF16);
}

/* Returns whether a GGUF file's tensor loses nothing in the format it gets without settings. Plain numbers
 * count as lossless. */
static bool is_exact(const struct convert_plan *p, const struct tensor *t, uint32_t format)
{
    return format_of(format)->scheme == SCHEME_PLAIN || gguf_source_holds(&p->gguf, t, format);
}

/* Returns whether a matrix's rows can have a format. Operations do not read tables. */
static bool takes(const struct matrix *w, uint32_t format)
{
    return table_has(w->weight->name) ? format_takes_cols(format_of(format), w->cols)
                                      : fits(format_of(format), w->cols);
}

/* Chooses the format of a GGUF file's matrix. Rows that operations cannot take as codes become plain
 * numbers. */
static int choose_gguf(struct convert_plan *p, const struct convert_wish *wish, const struct matrix *w,
                       const char *what, uint32_t *format, struct moeflux_err *e)
{
    bool is_free = !is_gate(p, w->weight->name) && !is_exact(p, w->weight, w->format) && wish->bits;
    p->choice[wish->by_expert_bits].n_lowered += is_free;
    uint32_t found = is_gate(p, w->weight->name) ? w->format
                     : is_free                   ? quantised(wish)
                                                 : lower(p, wish, w->format, what);
    int rc = found == w->format ? 0 : check_group(wish, what, w->cols, e);
    if (rc == 0 && !takes(w, found))
        found = w->format;
    if (rc == 0 && format_of(found)->scheme != SCHEME_PLAIN && takes(w, found))
        *format = found;
    return rc;
}

int convert_choose_matrix(struct convert_plan *p, const struct matrix *w, uint32_t *format,
                          struct moeflux_err *e)
{
    const char *name = w->weight->name;
    struct convert_wish wish = convert_settings_matrix(&p->settings, &p->src.config, name);
    char what[160];
    snprintf(what, sizeof what, "tensor %s", tensor_label(w->weight));
    *format = FORMAT_NONE;
    if (p->src.is_gguf)
        return choose_gguf(p, &wish, w, what, format, e);
    /* The rest was published unquantised on purpose, unless it has 8-bit floats. */
    if (p->expert_format != FORMAT_NONE && !wish.bits && !p->src.fp8.rows)
        return 0;
    if (is_gate(p, name)) {
        uint32_t gate = gate_format(p->src.config.family);
        *format = p->quantised || gate == FORMAT_NONE || !fits(format_of(gate), w->cols) ? FORMAT_NONE : gate;
        return 0;
    }
    bool is_fp8 = w->weight->dtype == DTYPE_F8_E4M3; /* also next to NVFP4 */
    if (p->quantised && !w->scales && !is_fp8)
        return 0;
    bool has_codes = p->quantised && !is_fp8;
    p->choice[wish.by_expert_bits].n_lowered += is_fp8 && wish.bits;
    uint32_t found = has_codes ? lower(p, &wish, w->format, what) : quantised(&wish);
    if (has_codes && found == w->format)
        return 0;
    if (table_has(name)) {
        bool stays = is_fp8 && !convert_settings_give_bits(&p->settings);
        *format = stays ? FORMAT_NONE : table_format(found, w->cols);
        return 0;
    }
    int rc = check_group(&wish, what, w->cols, e);
    if (rc == 0 && fits(format_of(found), w->cols))
        *format = found;
    return rc;
}

static bool experts_are_exact(const struct convert_plan *p, uint32_t layer, bool down, uint32_t format)
{
    struct convert_run run;
    bool exact = true;
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN && exact; proj++)
        if (down == (proj == EXPERT_DOWN))
            exact = convert_plan_expert(p, layer, 0, proj, &run, NULL) == 0 &&
                    gguf_source_holds(&p->gguf, run.t, format);
    return exact;
}

static int choose_projection(struct convert_plan *p, uint32_t layer, bool down, uint32_t from,
                             uint32_t *format, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    struct convert_wish wish = convert_settings_experts(&p->settings, c, layer, down);
    char what[64];
    snprintf(what, sizeof what, "layer %u's experts, %s", layer, down ? "down" : "gate and up");
    bool is_free = p->src.is_gguf && wish.bits && !experts_are_exact(p, layer, down, from);
    bool is_fp8 = from == FORMAT_FP8 || from == FORMAT_FP8_32; /* next to NVFP4 */
    bool has_codes =
        (p->quantised && !is_fp8) || p->expert_format != FORMAT_NONE || (p->src.is_gguf && !is_free);
    p->choice[wish.by_expert_bits].n_lowered += is_free || (is_fp8 && wish.bits);
    *format = has_codes ? lower(p, &wish, from, what) : quantised(&wish);
    if (has_codes && *format == from)
        return 0;
    return check_group(&wish, what, down ? c->moe_inner : config_expert_hidden(c), e);
}

/* Finds the formats of a GGUF file's experts. The plan has checked that the stacks are present. */
static void find_gguf_formats(const struct convert_plan *p, uint32_t layer, struct expert_formats *out)
{
    struct convert_run runs[3];
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN; proj++)
        if (convert_plan_expert(p, layer, 0, proj, &runs[proj], NULL) < 0)
            return;
    if (p->src.config.gateless)
        runs[EXPERT_GATE] = runs[EXPERT_UP];
    out->gate = gguf_source_expert_format(&p->gguf, runs[EXPERT_GATE].t, runs[EXPERT_UP].t);
    out->up = gguf_source_expert_format(&p->gguf, runs[EXPERT_UP].t, runs[EXPERT_GATE].t);
    out->down = gguf_source_expert_format(&p->gguf, runs[EXPERT_DOWN].t, runs[EXPERT_DOWN].t);
}

int convert_choose_experts(struct convert_plan *p, uint32_t layer, struct expert_formats *out,
                           struct moeflux_err *e)
{
    struct expert_formats from = {0};
    if (p->quantised)
        from = p->src.experts[layer].formats;
    else if (p->expert_format != FORMAT_NONE)
        from = (struct expert_formats){p->expert_format, p->expert_format, p->expert_format};
    else if (p->src.is_gguf)
        find_gguf_formats(p, layer, &from);
    int rc = choose_projection(p, layer, false, from.up, &out->up, e);
    if (rc == 0)
        rc = choose_projection(p, layer, true, from.down, &out->down, e);
    out->gate = out->up;
    if (rc == 0 && from.gate != from.up)
        rc = choose_projection(p, layer, false, from.gate, &out->gate, e);
    return rc;
}

void convert_choose_default(struct convert_plan *p, uint32_t source_bits, uint32_t source_group)
{
    struct convert_wish w = convert_settings_matrix(&p->settings, &p->src.config, "");
    if (w.has_mode) /* each matrix of a mode has an entry of its own */
        w = (struct convert_wish){0};
    p->bits = w.bits && w.bits < source_bits ? w.bits : source_bits;
    p->group = w.group && p->bits == w.bits ? w.group : source_group;
    if (!p->quantised) {
        const struct format *f = format_of(quantised(&w));
        p->bits = f->bits;
        p->group = f->group;
    }
}

int convert_choose_check(const struct convert_plan *p, struct moeflux_err *e)
{
    const struct convert_settings *s = &p->settings;
    if (!(p->quantised || p->src.is_gguf) || !convert_settings_given(s))
        return 0;
    bool is_rule_alone = p->src.is_gguf && !s->group && !s->expert_group;
    if (!convert_settings_give_bits(s) && !is_rule_alone)
        return err_set(
            e, ERR_USAGE,
            "%s: is quantised already; `bits`, `expert_bits`, `mode`, `expert_mode` or `recipe` says to what",
            p->src.path);
    for (int i = 0; i < 2; i++)
        if (p->choice[i].n_lowered == 0 && p->choice[i].unmet.text[0])
            return err_set(e, ERR_USAGE, "%s: %s", p->src.path, p->choice[i].unmet.text);
    return 0;
}
