#include "text/tokenizer/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "base/str.h"
#include "text/tokenizer/pattern.h"
#include "text/tokenizer/work_limit.h"

/* The published patterns have at most 1 KiB. */
#define MAX_PATTERN_BYTES 4096
#define MAX_LOOKBEHIND    255
#define HEAP_KIB          (512u << 10)
/* Alternatives that fail at once have no callout. So the start of a match counts one more step for every so
 * many bytes of the pattern. */
#define PATTERN_BYTES_PER_STEP 64

struct pretokenize_split {
    pcre2_code *code;
    enum pretokenize_join join;
    uint32_t start_steps;
};

static int compile_error(struct moeflux_err *e, int code, const char *pattern, size_t len, size_t at)
{
    PCRE2_UCHAR text[128];
    if (code == PCRE2_ERROR_NOMEMORY)
        return err_set(e, ERR_MEMORY, "out of memory for a pattern of %zu bytes", len);
    pcre2_get_error_message(code, text, sizeof text);
    return err_set(e, ERR_FORMAT, "pattern %s: %s (near byte %zu of its PCRE2 form)",
                   quote_bytes(pattern, len).text, (const char *)text, at);
}

/* Compiles the PCRE2 form `text` of `pattern`. */
static int compile(const struct str *text, const char *pattern, size_t len, pcre2_code **code,
                   struct moeflux_err *e)
{
    int number;
    PCRE2_SIZE at;
    uint32_t matches_empty = 0, lookbehind = 0;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return err_set(e, ERR_MEMORY, "out of memory for a pattern of %zu bytes", len);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *code = pcre2_compile((PCRE2_SPTR)str_text(text), text->len, options, &number, &at, context);
    pcre2_compile_context_free(context);
    if (!*code)
        return compile_error(e, number, pattern, len, at);
    pcre2_pattern_info(*code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty)
        return err_set(e, ERR_UNSUPPORTED, "pattern %s: it can match the empty text",
                       quote_bytes(pattern, len).text);
    pcre2_pattern_info(*code, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
    if (lookbehind > MAX_LOOKBEHIND)
        return err_set(e, ERR_UNSUPPORTED, "pattern %s: it looks back by %u characters, expected at most %d",
                       quote_bytes(pattern, len).text, lookbehind, MAX_LOOKBEHIND);
    /* Without a JIT the interpreter gives the same matches. */
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pretokenize_add(struct pretokenizer *p, const char *pattern, size_t len, bool literal,
                    enum pretokenize_join join, struct moeflux_err *e)
{
    if (p->n_splits == PRETOKENIZE_MAX_SPLITS)
        return err_set(e, ERR_UNSUPPORTED, "more than %d splits", PRETOKENIZE_MAX_SPLITS);
    if (len == 0 || len > MAX_PATTERN_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "a pattern of %zu bytes, expected 1 to %d", len,
                       MAX_PATTERN_BYTES);
    struct pretokenize_split *split = mem_new(1, sizeof *split, e);
    if (!split)
        return ERR_MEMORY;
    split->join = join;
    split->start_steps = 1 + (uint32_t)len / PATTERN_BYTES_PER_STEP;
    p->splits[p->n_splits++] = split;
    struct str text = {0};
    int rc = literal ? pattern_quote(pattern, len, &text, e) : pattern_translate(pattern, len, &text, e);
    if (rc == 0)
        rc = compile(&text, pattern, len, &split->code, e);
    str_free(&text);
    return rc;
}

void pretokenize_free(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_splits; i++) {
        pcre2_code_free(p->splits[i]->code);
        free(p->splits[i]);
    }
}

struct run {
    const struct pretokenizer *p;
    const char *text; /* the whole text, [len] */
    size_t len;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct work_limit *limit;
    size_t split;     /* index of the current split */
    size_t start, at; /* offsets in the piece: the start of the current match, and the last callout */
    struct pretokenize_sink sink;
    struct moeflux_err *e;
};

/* Counts the steps since the last callout: one, and one for each byte that the match advanced. */
static int count_steps(pcre2_callout_block *b, void *data)
{
    struct run *r = data;
    size_t at = b->current_position;
    uint64_t n = 1 + (at > r->at ? at - r->at : 0);
    if (b->callout_number == PATTERN_START) {
        r->start = at;
        n = r->p->splits[r->split]->start_steps;
    }
    r->at = at;
    return work_limit_take(r->limit, n) ? 0 : PCRE2_ERROR_CALLOUT;
}

/* `piece`: the searched text. */
static int match_error(const struct run *r, int code, const char *piece)
{
    PCRE2_UCHAR text[128];
    char split[64];
    size_t at = (size_t)(piece - r->text) + r->start;
    snprintf(split, sizeof split, "split %zu of %zu", r->split + 1, r->p->n_splits);
    if (code == PCRE2_ERROR_NOMEMORY)
        return err_set(r->e, ERR_MEMORY, "out of memory for splitting %zu bytes of text", r->len);
    if (code == PCRE2_ERROR_CALLOUT)
        return work_limit_error(r->limit, split, at, r->len, r->e);
    pcre2_get_error_message(code, text, sizeof text);
    return err_set(r->e, ERR_UNSUPPORTED, "tokenizer.json: %s fails at byte %zu of %zu bytes of text: %s",
                   split, at, r->len, (const char *)text);
}

/* Finds the next match at or after `from`. Returns 1 with *start < *end, 0 if there is none, or an error. */
static int find_match(struct run *r, size_t split, const char *text, size_t len, size_t from, size_t *start,
                      size_t *end)
{
    const pcre2_code *code = r->p->splits[split]->code;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    r->split = split;
    r->start = r->at = from;
    /* The whole text was checked before; checking it again for every piece would be quadratic. */
    int rc = pcre2_match(code, subject, len, from, PCRE2_NO_UTF_CHECK, r->match, r->context);
    /* The interpreter keeps its frames on the heap, so it can go deeper. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match, r->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return match_error(r, rc, text);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(r->match);
    *start = range[0];
    *end = range[1];
    if (*end <= *start || *start < from)
        return err_set(r->e, ERR_UNSUPPORTED, "tokenizer.json: split %zu of %zu matches the empty text",
                       split + 1, r->p->n_splits);
    return 1;
}

/* A match, a gap, or several of them joined; then `is_match` is that of the last part. */
struct segment {
    size_t start, end;
    bool is_match;
};

static bool joins(enum pretokenize_join join, bool a_is_match, bool b_is_match)
{
    switch (join) {
    case PRETOKENIZE_CONTIGUOUS:
        return a_is_match && b_is_match;
    case PRETOKENIZE_WITH_PREVIOUS:
        return !a_is_match && b_is_match;
    case PRETOKENIZE_WITH_NEXT:
        return a_is_match && !b_is_match;
    case PRETOKENIZE_ISOLATED:
    case PRETOKENIZE_DROP_MATCHES:
    case PRETOKENIZE_DROP_GAPS:
    case PRETOKENIZE_N_JOINS:
        break;
    }
    return false;
}

static bool drops(enum pretokenize_join join, bool is_match)
{
    return join == (is_match ? PRETOKENIZE_DROP_MATCHES : PRETOKENIZE_DROP_GAPS);
}

static int cut(struct run *r, size_t split, const char *text, size_t len);

/* Takes the segment after `held`. Drops it, joins the two, or passes `held` to the next split. */
static int take(struct run *r, size_t split, const char *text, struct segment *held, struct segment next)
{
    int rc = 0;
    if (next.end == next.start || drops(r->p->splits[split]->join, next.is_match))
        return 0;
    if (held->end > held->start && joins(r->p->splits[split]->join, held->is_match, next.is_match))
        next.start = held->start;
    else if (held->end > held->start)
        rc = cut(r, split + 1, text + held->start, held->end - held->start);
    *held = next;
    return rc;
}

/* Recurses once for each split, at most PRETOKENIZE_MAX_SPLITS deep. */
static int cut(struct run *r, size_t split, const char *text, size_t len)
{
    if (split == r->p->n_splits)
        return r->sink.piece(r->sink.ctx, text, len, r->e);
    struct segment held = {0};
    for (size_t done = 0; done < len;) {
        size_t start = len, end = len;
        int rc = find_match(r, split, text, len, done, &start, &end);
        if (rc >= 0)
            rc = take(r, split, text, &held, (struct segment){done, start, false});
        if (rc >= 0)
            rc = take(r, split, text, &held, (struct segment){start, end, true});
        if (rc < 0)
            return rc;
        done = end;
    }
    return held.end > held.start ? cut(r, split + 1, text + held.start, held.end - held.start) : 0;
}

int pretokenize_run(const struct pretokenizer *p, const char *text, size_t len, struct work_limit *limit,
                    struct pretokenize_sink sink, struct moeflux_err *e)
{
    struct run r = {.p = p, .text = text, .len = len, .limit = limit, .sink = sink, .e = e};
    int rc;
    if (len == 0)
        return 0;
    r.match = pcre2_match_data_create(1, NULL);
    r.context = pcre2_match_context_create(NULL);
    if (r.match && r.context) {
        pcre2_set_callout(r.context, count_steps, &r);
        /* PCRE2 restarts its count at every start of a match. */
        pcre2_set_match_limit(r.context, (uint32_t)size_min(limit->left, UINT32_MAX));
        pcre2_set_heap_limit(r.context, HEAP_KIB);
        rc = cut(&r, 0, text, len);
    } else {
        rc = err_set(e, ERR_MEMORY, "out of memory for splitting %zu bytes of text", len);
    }
    pcre2_match_context_free(r.context);
    pcre2_match_data_free(r.match);
    return rc;
}
