#include "base/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "base/str.h"

/* What is counted in a text outside its strings. */
struct shape {
    size_t n_values;
    unsigned too_deep; /* line of the first place that is nested too deep; 0: none */
};

static struct shape shape_of(const char *text, size_t len)
{
    struct shape s = {0};
    unsigned depth = 0, line = 1;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        line += c == '\n';
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        if (in_string)
            continue;
        bool opens = c == '[' || c == '{';
        s.n_values += opens || c == ',';
        depth += opens;
        if (depth > JSON_MAX_NESTING && !s.too_deep)
            s.too_deep = line;
        depth -= (c == ']' || c == '}') && depth > 0;
    }
    return s;
}

size_t json_count_values(const char *text, size_t len)
{
    return shape_of(text, len).n_values;
}

/* Checks nesting and the number of values: jansson recurses up to 2048 levels and has no other limit. */
static int check_shape(const char *text, size_t len, const char *where, size_t max_values,
                       struct moeflux_err *e)
{
    struct shape s = shape_of(text, len);
    if (s.too_deep)
        return err_set(e, ERR_FORMAT, "%s: line %u: nested deeper than %d levels", where, s.too_deep,
                       JSON_MAX_NESTING);
    if (s.n_values > max_values)
        return err_set(e, ERR_FORMAT, "%s: %zu JSON values, expected at most %zu", where, s.n_values,
                       max_values);
    return 0;
}

/* Replaces Infinity outside of strings by a number of the same length that is too large. Returns whether
 * there was any. */
static bool replace_infinity(char *text, size_t len)
{
    static const char word[] = "Infinity", number[] = "1e999   ";
    const size_t n = sizeof word - 1;
    bool in_string = false, found = false;
    for (size_t i = 0; i < len; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && len - i >= n && memcmp(text + i, word, n) == 0) {
            memcpy(text + i, number, n);
            found = true;
        }
    }
    return found;
}

static json_t *load_rounded(const char *text, size_t len, json_error_t *why)
{
    json_t *marked = json_sent_load(text, len, JSON_REJECT_DUPLICATES, why), *value = json_sent_round(marked);
    json_decref(marked);
    return value;
}

/* JSON has integers of any size. transformers writes 10^30 for a length without limit, and Python writes
 * Infinity, which is no JSON: Nemotron-3's time_step_limit has it. */
static json_t *load(const char *text, size_t len, json_error_t *why)
{
    json_t *value = load_rounded(text, len, why);
    if (value || json_error_code(why) != json_error_invalid_syntax)
        return value;
    char *own = mem_new(len, 1, NULL);
    if (!own)
        return NULL;
    memcpy(own, text, len);
    json_error_t other;
    if (replace_infinity(own, len))
        value = load_rounded(own, len, &other);
    free(own);
    return value;
}

int json_read(const char *text, size_t len, const char *where, size_t max_values, struct json_t **root,
              struct moeflux_err *e)
{
    json_error_t why;
    int rc = check_shape(text, len, where, max_values, e);
    if (rc < 0)
        return rc;
    json_t *value = load(text, len, &why);
    if (!value && json_error_code(&why) == json_error_out_of_memory)
        return err_set(e, ERR_MEMORY, "%s: out of memory for %zu bytes of JSON", where, len);
    if (!value)
        return err_set(e, ERR_FORMAT, "%s: line %d: %s", where, why.line, why.text);
    if (!json_is_object(value)) {
        json_decref(value);
        return err_set(e, ERR_FORMAT, "%s: expected a JSON object", where);
    }
    *root = value;
    return 0;
}

int json_read_file(const char *path, uint64_t max_bytes, size_t max_values, struct json_t **root,
                   struct moeflux_err *e)
{
    char *text;
    size_t len;
    int rc = file_read_text(path, max_bytes, &text, &len, e);
    if (rc < 0)
        return rc;
    rc = json_read(text, len, path, max_values, root, e);
    free(text);
    return rc;
}

const struct json_t *json_member(const struct json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

bool json_is_text(const struct json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

struct quote json_quote(const struct json_t *value)
{
    static const char *const kinds[] = {"an object", "an array", "", "", "", "true", "false", "null"};
    struct quote q;
    const char *sent = json_sent_number(value);
    if (json_is_string(value) && !sent)
        return quote_bytes(json_string_value(value), json_string_length(value));
    if (json_is_integer(value))
        snprintf(q.text, sizeof q.text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(q.text, sizeof q.text, "%g", json_real_value(value));
    else
        snprintf(q.text, sizeof q.text, "%.40s", sent ? sent : value ? kinds[json_typeof(value)] : "nothing");
    return q;
}

struct quote json_quote_member(const struct json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? quote_bytes(json_string_value(value), json_string_length(value))
                                 : quote_bytes("", 0);
}

struct json_view json_view_of(const struct json_t *object, const char *where, struct moeflux_err *e)
{
    return (struct json_view){.objects = {object}, .where = where, .e = e};
}

const struct json_t *json_view_get(const struct json_view *v, const char *key)
{
    for (int i = 0; i < JSON_VIEW_OBJECTS; i++) {
        const json_t *value = json_member(v->objects[i], key);
        if (value)
            return value;
    }
    return NULL;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    default:
        return "null";
    }
}

static void fail_type(struct json_view *v, const char *key, const json_t *value, const char *expected)
{
    v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %s, expected %s", v->where, key, type_name(value), expected);
}

static void fail_missing(struct json_view *v, const char *key)
{
    v->rc = err_set(v->e, ERR_FORMAT, "%s: key %s is missing", v->where, key);
}

static uint64_t whole(struct json_view *v, const char *key, const json_t *value, uint64_t lo, uint64_t hi)
{
    if (!json_is_integer(value)) {
        fail_type(v, key, value, "a whole number");
        return 0;
    }
    json_int_t n = json_integer_value(value);
    if (n < 0 || (uint64_t)n < lo || (uint64_t)n > hi) {
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %lld, expected %llu to %llu", v->where, key,
                        (long long)n, (unsigned long long)lo, (unsigned long long)hi);
        return 0;
    }
    return (uint64_t)n;
}

uint64_t json_view_u64(struct json_view *v, const char *key, uint64_t lo, uint64_t hi)
{
    if (v->rc < 0)
        return 0;
    const json_t *value = json_view_get(v, key);
    if (!value) {
        fail_missing(v, key);
        return 0;
    }
    return whole(v, key, value, lo, hi);
}

uint32_t json_view_u32(struct json_view *v, const char *key, uint32_t lo, uint32_t hi)
{
    return (uint32_t)json_view_u64(v, key, lo, hi);
}

uint32_t json_view_u32_or(struct json_view *v, const char *key, uint32_t fallback, uint32_t lo, uint32_t hi)
{
    return json_view_get(v, key) ? json_view_u32(v, key, lo, hi) : fallback;
}

double json_view_real_or(struct json_view *v, const char *key, double fallback, double lo, double hi)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc < 0 || !value)
        return fallback;
    if (!json_is_number(value)) {
        fail_type(v, key, value, "a number");
        return fallback;
    }
    double x = json_number_value(value);
    if (!isfinite(x) || x < lo || x > hi) {
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %g, expected %g to %g", v->where, key, x, lo, hi);
        return fallback;
    }
    return x;
}

bool json_view_bool_or(struct json_view *v, const char *key, bool fallback)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc < 0 || !value)
        return fallback;
    if (!json_is_boolean(value)) {
        fail_type(v, key, value, "true or false");
        return fallback;
    }
    return json_is_true(value);
}

bool json_view_bool(struct json_view *v, const char *key)
{
    if (v->rc == 0 && !json_view_get(v, key))
        fail_missing(v, key);
    return json_view_bool_or(v, key, false);
}

void json_view_need_false(struct json_view *v, const char *key, bool fallback)
{
    if (json_view_bool_or(v, key, fallback) && v->rc == 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is true, only false is supported", v->where, key);
}

const char *json_view_text_or(struct json_view *v, const char *key, const char *fallback)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc < 0 || !value)
        return fallback;
    if (!json_is_string(value)) {
        fail_type(v, key, value, "a string");
        return fallback;
    }
    return json_string_value(value);
}

const struct json_t *json_view_object(struct json_view *v, const char *key)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc < 0 || !value)
        return NULL;
    if (!json_is_object(value)) {
        fail_type(v, key, value, "an object");
        return NULL;
    }
    return value;
}

const struct json_t *json_view_array(struct json_view *v, const char *key)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc < 0 || !value)
        return NULL;
    if (!json_is_array(value)) {
        fail_type(v, key, value, "an array");
        return NULL;
    }
    return value;
}

char *json_id_key(const struct json_t *id, uint64_t line)
{
    struct str key = {0};
    if (json_is_string(id)) {
        str_add_text(&key, "text ");
        str_add(&key, json_string_value(id), json_string_length(id));
    } else if (json_is_integer(id)) {
        str_addf(&key, "number %" JSON_INTEGER_FORMAT, json_integer_value(id));
    } else {
        str_addf(&key, "line %" PRIu64, line);
    }
    if (str_ok(&key))
        return key.data;
    str_free(&key);
    return NULL;
}
