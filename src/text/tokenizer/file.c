#include "text/tokenizer/file.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "text/tokenizer/jsonscan.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/lists.h"
#include "text/utf8.h"

/* The lists may be large and are read in place; the rest of the file is parsed into a tree. */
#define MAX_FILE_BYTES ((uint64_t)256 << 20)
#define MAX_REST_BYTES ((size_t)16 << 20)

/* ---- normalizer ---- */

/* Returns whether the step writes VOCAB_SPACE for a space; decodes: the other way round. */
static bool marks_spaces(const json_t *step, bool decodes)
{
    const json_t *from = json_object_get(json_object_get(step, "pattern"), "String"),
                 *to = json_object_get(step, "content");
    return json_is_text(json_object_get(step, "type"), "Replace") && json_is_text(decodes ? to : from, " ") &&
           json_is_text(decodes ? from : to, VOCAB_SPACE);
}

/* Prepend comes first, so that what it writes is a space. */
static int read_normalizer_step(struct tokenizer *t, const json_t *step, struct moeflux_err *e)
{
    const json_t *type = json_object_get(step, "type");
    struct normaliser *n = &t->normaliser;
    bool is_piece = t->vocab.writing == VOCAB_SENTENCEPIECE;
    if (json_is_text(type, "NFC"))
        n->nfc = true;
    else if (is_piece && marks_spaces(step, false))
        n->marks_spaces = true;
    else if (is_piece && json_is_text(type, "Prepend") && !n->marks_spaces && !n->nfc &&
             json_is_text(json_object_get(step, "prepend"), VOCAB_SPACE))
        n->space_prefix = true;
    else
        return err_set(e, ERR_UNSUPPORTED, "normalizer: type %s, expected %s",
                       json_quote_member(step, "type").text,
                       is_piece ? "NFC, Prepend of U+2581, then Replace of space by U+2581" : "NFC");
    return 0;
}

static int read_normalizer(struct tokenizer *t, const json_t *root, struct moeflux_err *e)
{
    const json_t *normalizer = json_member(root, "normalizer");
    if (!normalizer)
        return 0;
    if (!json_is_text(json_object_get(normalizer, "type"), "Sequence"))
        return read_normalizer_step(t, normalizer, e);
    const json_t *steps = json_object_get(normalizer, "normalizers");
    if (!json_is_array(steps))
        return err_set(e, ERR_FORMAT, "normalizer: normalizers is missing or not an array");
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        int rc = read_normalizer_step(t, step, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- pre_tokenizer ---- */

/* Reads "behavior" and "invert". Inverted, the gaps count as matches and the matches as gaps. Contiguous
 * joins neighbours of the same kind, and gaps never touch, so inverting does not change it. */
static int read_behavior(const json_t *step, const char *where, enum pretokenize_join *join,
                         struct moeflux_err *e)
{
    static const struct {
        const char *name;
        enum pretokenize_join plain, inverted;
    } kinds[] = {
        {"Isolated", PRETOKENIZE_ISOLATED, PRETOKENIZE_ISOLATED},
        {"Removed", PRETOKENIZE_DROP_MATCHES, PRETOKENIZE_DROP_GAPS},
        {"Contiguous", PRETOKENIZE_CONTIGUOUS, PRETOKENIZE_CONTIGUOUS},
        {"MergedWithPrevious", PRETOKENIZE_WITH_PREVIOUS, PRETOKENIZE_WITH_NEXT},
        {"MergedWithNext", PRETOKENIZE_WITH_NEXT, PRETOKENIZE_WITH_PREVIOUS},
    };
    struct json_view v = json_view_of(step, where, e);
    bool invert = json_view_bool_or(&v, "invert", false);
    if (v.rc < 0)
        return v.rc;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (json_is_text(json_object_get(step, "behavior"), kinds[i].name)) {
            *join = invert ? kinds[i].inverted : kinds[i].plain;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: behavior %s, expected Isolated, Removed, Contiguous, MergedWithPrevious or "
                   "MergedWithNext",
                   where, json_quote_member(step, "behavior").text);
}

static int read_split(struct tokenizer *t, const json_t *step, const char *where, struct moeflux_err *e)
{
    enum pretokenize_join join = PRETOKENIZE_ISOLATED;
    int rc = read_behavior(step, where, &join, e);
    if (rc < 0)
        return rc;
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text))
        return err_set(e, ERR_FORMAT, "%s: pattern has neither a Regex nor a String", where);
    return pretokenize_add(&t->pretokenizer, json_string_value(text), json_string_length(text), !regex, join,
                           e);
}

/* Digits are Unicode's numbers (Nd, Nl, No), split one by one or in runs. */
static int read_digits(struct tokenizer *t, const json_t *step, const char *where, struct moeflux_err *e)
{
    struct json_view v = json_view_of(step, where, e);
    bool alone = json_view_bool(&v, "individual_digits");
    return v.rc < 0 ? v.rc
                    : pretokenize_add(&t->pretokenizer, "\\p{N}", strlen("\\p{N}"), false,
                                      alone ? PRETOKENIZE_ISOLATED : PRETOKENIZE_CONTIGUOUS, e);
}

static int read_byte_level(const json_t *step, const char *where, struct moeflux_err *e)
{
    struct json_view v = json_view_of(step, where, e);
    json_view_need_false(&v, "add_prefix_space", true);
    json_view_need_false(&v, "use_regex", true);
    return v.rc;
}

/* ByteLevel must be last: it turns text into the byte alphabet, so a later step
 * would see other characters. */
static int read_pretokenizer_step(struct tokenizer *t, const json_t *step, size_t idx, size_t n_steps,
                                  struct moeflux_err *e)
{
    const json_t *type = json_object_get(step, "type");
    bool is_piece = t->vocab.writing == VOCAB_SENTENCEPIECE, splits = is_piece || idx + 1 < n_steps;
    char where[48];
    snprintf(where, sizeof where, "pre_tokenizer step %zu of %zu", idx + 1, n_steps);
    if (json_is_text(type, "Split") && splits)
        return read_split(t, step, where, e);
    if (json_is_text(type, "Digits") && splits)
        return read_digits(t, step, where, e);
    if (json_is_text(type, "ByteLevel") && idx + 1 == n_steps && !is_piece)
        return read_byte_level(step, where, e);
    return err_set(e, ERR_UNSUPPORTED, "%s: type %s, expected \"Split\" or \"Digits\" steps%s", where,
                   json_quote_member(step, "type").text, is_piece ? "" : " and one \"ByteLevel\" at the end");
}

static int read_pretokenizer(struct tokenizer *t, const json_t *root, struct moeflux_err *e)
{
    const json_t *pre = json_member(root, "pre_tokenizer");
    if (!pre && t->vocab.writing == VOCAB_SENTENCEPIECE)
        return 0;
    if (!pre)
        return err_set(e, ERR_UNSUPPORTED,
                       "pre_tokenizer is missing, and so is byte_fallback of the model: expected byte-level "
                       "BPE, or SentencePiece's BPE with byte fallback");
    if (!json_is_text(json_object_get(pre, "type"), "Sequence"))
        return read_pretokenizer_step(t, pre, 0, 1, e);
    const json_t *steps = json_object_get(pre, "pretokenizers");
    if (!json_is_array(steps) || json_array_size(steps) == 0)
        return err_set(e, ERR_FORMAT, "pre_tokenizer: pretokenizers is missing, empty or not an array");
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        int rc = read_pretokenizer_step(t, step, i, json_array_size(steps), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- model ---- */

static int refuse_affixes(const json_t *model, struct moeflux_err *e)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
        const json_t *v = json_member(model, affixes[i]);
        if (v && !json_is_text(v, ""))
            return err_set(e, ERR_UNSUPPORTED, "model: %s is set, only null is supported", affixes[i]);
    }
    const json_t *dropout = json_member(model, "dropout");
    if (dropout && json_number_value(dropout) != 0.0)
        return err_set(e, ERR_UNSUPPORTED, "model: dropout is set, only null is supported");
    return 0;
}

static int read_model_options(struct tokenizer *t, const json_t *model, struct moeflux_err *e)
{
    if (!json_is_object(model))
        return err_set(e, ERR_FORMAT, "model is missing or not an object");
    if (!json_is_text(json_object_get(model, "type"), "BPE"))
        return err_set(e, ERR_UNSUPPORTED, "model: type %s, only \"BPE\" is supported",
                       json_quote_member(model, "type").text);
    struct json_view v = json_view_of(model, "model", e);
    t->vocab.writing = json_view_bool_or(&v, "byte_fallback", false) ? VOCAB_SENTENCEPIECE : VOCAB_BYTE_LEVEL;
    t->ignore_merges = json_view_bool_or(&v, "ignore_merges", false);
    return v.rc < 0 ? v.rc : refuse_affixes(model, e);
}

/* ---- decoder ---- */

/* Returns whether the step takes away at most the one space in front of a text. */
static bool strips_space(const json_t *step)
{
    json_int_t start = json_integer_value(json_object_get(step, "start")),
               stop = json_integer_value(json_object_get(step, "stop"));
    return json_is_text(json_object_get(step, "type"), "Strip") &&
           json_is_text(json_object_get(step, "content"), " ") && start >= 0 && start <= 1 && stop == 0;
}

/* Checks that the tokens' texts stand for what vocab.h says. Fuse changes nothing. Strip takes away the space
 * in front of a text, which tokens have like any other. */
static int check_decoder(const struct tokenizer *t, const json_t *root, struct moeflux_err *e)
{
    const json_t *decoder = json_member(root, "decoder"), *steps = json_object_get(decoder, "decoders"),
                 *step;
    bool spaces = false, bytes = false;
    size_t i;
    if (t->vocab.writing == VOCAB_BYTE_LEVEL)
        return 0;
    if (decoder && !json_is_text(json_object_get(decoder, "type"), "Sequence"))
        return err_set(e, ERR_UNSUPPORTED, "decoder: type %s, expected Sequence",
                       json_quote_member(decoder, "type").text);
    json_array_foreach(steps, i, step)
    {
        const json_t *type = json_object_get(step, "type");
        if (marks_spaces(step, true))
            spaces = true;
        else if (json_is_text(type, "ByteFallback"))
            bytes = true;
        else if (!json_is_text(type, "Fuse") && !strips_space(step))
            return err_set(
                e, ERR_UNSUPPORTED,
                "decoder: type %s, expected Replace of U+2581 by space, ByteFallback, Fuse, or Strip of "
                "one space at the start",
                json_quote_member(step, "type").text);
    }
    if (spaces && bytes && t->normaliser.marks_spaces)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "model: byte_fallback is set, but not both the normalizer and the decoder replace a space "
                   "and U+2581, with ByteFallback in the decoder");
}

/* ---- the file ---- */

struct search {
    struct tokenizer_lists *lists;
    struct str *scratch;
};

/* Skips a list, which opens with `bracket`, and records its place. */
static int locate_list(struct jsonscan *s, struct jsonscan *list, const char *name, char bracket,
                       struct moeflux_err *e)
{
    char first = jsonscan_peek(s);
    size_t start = s->at;
    int rc = jsonscan_skip(s, e);
    if (rc < 0)
        return rc;
    if (list->text)
        return err_set(e, ERR_FORMAT, "%s is there twice", name);
    if (first != bracket)
        return err_set(e, ERR_FORMAT, "%s is not %s", name, bracket == '{' ? "an object" : "an array");
    if (!utf8_is_valid(s->text + start, s->at - start))
        return err_set(e, ERR_FORMAT, "%s is not valid UTF-8", name);
    *list = (struct jsonscan){s->text, start, s->at};
    return 0;
}

static int locate_in_model(void *ctx, struct jsonscan *s, struct jsonscan_text key, struct moeflux_err *e)
{
    struct tokenizer_lists *lists = ((struct search *)ctx)->lists;
    if (jsonscan_is(key, "vocab"))
        return locate_list(s, &lists->vocab, "model.vocab", '{', e);
    if (jsonscan_is(key, "merges"))
        return locate_list(s, &lists->merges, "model.merges", '[', e);
    return jsonscan_skip(s, e);
}

/* Visits a member of the top-level object. */
static int locate_in_file(void *ctx, struct jsonscan *s, struct jsonscan_text key, struct moeflux_err *e)
{
    struct search *search = ctx;
    char first = jsonscan_peek(s);
    if (jsonscan_is(key, "model") && first == '{')
        return jsonscan_members(s, search->scratch, locate_in_model, search, e);
    if (jsonscan_is(key, "added_tokens") && first != 'n')
        return locate_list(s, &search->lists->added, "added_tokens", '[', e);
    return jsonscan_skip(s, e);
}

static int locate_lists(const char *text, size_t len, struct tokenizer_lists *lists, struct moeflux_err *e)
{
    struct str scratch = {0};
    struct search search = {lists, &scratch};
    struct jsonscan s = {text, 0, len};
    int rc = jsonscan_members(&s, &scratch, locate_in_file, &search, e);
    str_free(&scratch);
    if (rc == 0 && !lists->vocab.text)
        rc = err_set(e, ERR_FORMAT, "model.vocab is missing");
    if (rc == 0 && !lists->merges.text)
        rc = err_set(e, ERR_FORMAT, "model.merges is missing");
    return rc;
}

/* The file's text without the lists. */
struct rest {
    struct str text;
    bool too_long;
};

static void add_part(struct rest *r, const char *bytes, size_t n)
{
    r->too_long = r->too_long || n > MAX_REST_BYTES - r->text.len;
    if (!r->too_long)
        str_add(&r->text, bytes, n);
}

/* Appends "null" in place of the list, and the list's line ends so that the
 * parser's line numbers are right. */
static void add_gap(struct rest *r, const struct jsonscan *list)
{
    add_part(r, "null", strlen("null"));
    for (size_t i = list->at; i < list->end && !r->too_long; i++)
        if (list->text[i] == '\n')
            add_part(r, "\n", 1);
}

static int copy_rest(const char *text, size_t len, const struct tokenizer_lists *lists, struct rest *rest,
                     struct moeflux_err *e)
{
    const struct jsonscan *all[] = {&lists->vocab, &lists->merges, &lists->added};
    enum { N = sizeof all / sizeof *all };
    size_t at = 0;
    for (int i = 0; i < N; i++) {
        const struct jsonscan *next = NULL;
        for (int k = 0; k < N; k++)
            if (all[k]->text && all[k]->at >= at && (!next || all[k]->at < next->at))
                next = all[k];
        if (!next)
            break;
        add_part(rest, text + at, next->at - at);
        add_gap(rest, next);
        at = next->end;
    }
    add_part(rest, text + at, len - at);
    if (!str_ok(&rest->text))
        return err_set(e, ERR_MEMORY, "out of memory for %zu bytes of JSON", len);
    if (rest->too_long)
        return err_set(e, ERR_FORMAT, "more than %zu bytes outside of vocab, merges and added_tokens",
                       MAX_REST_BYTES);
    return 0;
}

static int read_text(struct tokenizer *t, const char *text, size_t len, struct moeflux_err *e)
{
    struct tokenizer_lists lists = {0};
    struct rest rest = {0};
    json_t *root = NULL;
    int rc = locate_lists(text, len, &lists, e);
    if (rc == 0)
        rc = copy_rest(text, len, &lists, &rest, e);
    if (rc == 0)
        rc = json_read(rest.text.data, rest.text.len, "JSON", JSON_MAX_SMALL, &root, e);
    str_free(&rest.text);
    if (rc == 0)
        rc = read_model_options(t, json_object_get(root, "model"), e);
    if (rc == 0)
        rc = read_normalizer(t, root, e);
    if (rc == 0)
        rc = read_pretokenizer(t, root, e);
    if (rc == 0)
        rc = check_decoder(t, root, e);
    if (rc == 0)
        rc = tokenizer_config_post(t, root, e);
    if (rc == 0)
        rc = tokenizer_lists_read(&lists, t, e);
    json_decref(root);
    return rc;
}

int tokenizer_file_read_text(const char *path, const char *text, size_t len, struct tokenizer *t,
                             struct moeflux_err *e)
{
    struct moeflux_err fault = {0};
    int rc = read_text(t, text, len, &fault);
    return rc < 0 ? err_set(e, fault.code, "%s: %s", path, fault.text) : 0;
}

int tokenizer_file_read(const char *path, struct tokenizer *t, struct moeflux_err *e)
{
    char *text = NULL;
    size_t len = 0;
    int rc = file_read_text(path, MAX_FILE_BYTES, &text, &len, e);
    if (rc == 0)
        rc = tokenizer_file_read_text(path, text, len, t, e);
    free(text);
    return rc;
}
