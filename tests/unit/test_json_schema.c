/* Schemas as grammars: which texts fit, which schemas are refused.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_schema.h"
#include "text/tokenizer/token_trie.h"

static bool byte_text(const void *ctx, int32_t id, struct token_text *out)
{
    *out = (struct token_text){(const char *)ctx + id, 1};
    return true;
}

/* Texts that fit, then NULL, then texts that do not, then NULL. */
static void check(const char *schema, const char *const *texts)
{
    static char bytes[256];
    struct str text = {0};
    struct grammar *g;
    struct token_trie *t;
    struct constraint *c;
    struct moeflux_err e;
    check_ok(json_schema_text_to_grammar(schema, strlen(schema), "s", &text, &e), &e);
    if (grammar_compile(&g, str_text(&text), text.len, "g", &e) < 0)
        fail_msg("%s: %s in\n%s", schema, e.text, str_text(&text));
    check_ok(token_trie_new(&t, &(struct token_source){1, byte_text, bytes}, &e), &e);
    check_ok(constraint_new(&c, g, t, NULL, 0, &e), &e);
    for (bool fits = true; *texts || fits; texts++) {
        if (!*texts) {
            fits = false;
            continue;
        }
        check_ok(constraint_reset(c, &e), &e);
        bool found = constraint_accept_bytes(c, *texts, strlen(*texts), NULL) == 0 && constraint_may_end(c);
        if (found != fits)
            fail_msg("%s: %s: expected %d in\n%s", schema, *texts, fits, str_text(&text));
    }
    constraint_free(c);
    token_trie_free(t);
    str_free(&text);
}

#define CHECK(schema, ...) check(schema, (const char *const[]){__VA_ARGS__, NULL, NULL})

static void without_keywords_any_value_fits(void **state)
{
    (void)state;
    CHECK("{}", "1", "\"a\\u00e9\\ud83d\\ude00\"", "[1, 2]", "{\"a\": {\"b\":[]}}", "null", "-0.5e-3",
          "[\n  1\n]", NULL, "", "01", "{a:1}", "[1,]", "\"\\ud83d\"", "\"\n\"", "nul", "1 ");
}

static void types_are_distinguished(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\"}", "\"\"", "\"\\\"\\\\\"", NULL, "1", "\"", "\"\\x\"");
    CHECK("{\"type\":\"integer\"}", "0", "-12", NULL, "1.5", "007", "1e3", "12345678901234567");
    CHECK("{\"type\":[\"null\",\"boolean\"]}", "null", "true", "false", NULL, "0", "True");
    CHECK("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}", "[]", "[true]", "[true, false]", NULL,
          "[1]", "[true false]");
    CHECK("{\"type\":\"object\"}", "{}", "{\"x\":1}", NULL, "[]", "{\"x\"}");
    CHECK("{\"minLength\":2}", "\"ab\"", NULL, "\"a\"", "12");
}

static void objects_have_their_members_in_order(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"title\":\"T\",\"properties\":{\"a\":{\"type\":\"integer\"},"
        "\"b\":{\"type\":\"string\",\"description\":\"x\"},\"c\":{\"const\":null}},"
        "\"required\":[\"b\"]}";
    (void)state;
    CHECK(schema, "{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": 1, \"b\": \"x\", \"c\": null}",
          "{\n  \"b\": \"\",\n  \"c\": null\n}", NULL, "{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}",
          "{\"b\":\"\",}", "{,\"b\":\"\"}", "{\"b\":\"\",\"d\":1}");
    CHECK("{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}}", "{}",
          "{\"a\":\"x\"}", "{\"a\":[],\"b\":1,\"aa\":2}", "{\"\":1}", "{\"b\":1}", NULL, "{\"b\":\"x\"}",
          "{\"b\":1,\"a\":2}");
    CHECK("{\"properties\":{\"ab\":{},\"a]\":{},\"\xc3\xa9\":{}},\"additionalProperties\":true}", "{\"a\":1}",
          "{\"ab\":1}", "{\"a[\":1,\"abc\":2}", NULL, "{\"x\":1,\"ab\":2}", "{\"x\":1,\"a]\":2}",
          "{\"x\":1,\"\xc3\xa9\":2}");
    CHECK("{\"type\":\"object\",\"required\":[\"k\"]}", "{\"k\":[1]}", NULL, "{}", "{\"j\":1}");
    CHECK("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}", "{}", "{\"q\":null}", NULL,
          "{\"q\":1}");
}

static void arrays_have_as_many_items_as_the_schema_says(void **state)
{
    (void)state;
    CHECK("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1,2]",
          "[1, 2, 3]", NULL, "[1]", "[]", "[1,2,3,4]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":1}", "[1]",
          "[1,\"a\"]", NULL, "[]", "[\"a\"]", "[1,\"a\",2]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"maxItems\":3}", "[]",
          "[1]", "[1,null,null]", NULL, "[1,2]", "[1,null,null,null]");
    CHECK("{\"type\":\"array\",\"maxItems\":0}", "[]", NULL, "[1]");
    CHECK("{\"type\":\"array\",\"minItems\":1}", "[1]", "[{},\"a\"]", NULL, "[]");
}

static void texts_have_lengths_patterns_and_formats(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\",\"minLength\":1,\"maxLength\":3}", "\"a\"",
          "\"\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad\"", "\"\\n\\u0041b\"", NULL, "\"\"", "\"abcd\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^[a-c]+(-[0-9]{2,3})?$\"}", "\"abc\"", "\"a-12\"", "\"c-123\"",
          NULL, "\"\"", "\"a-1\"", "\"abd\"", "\"a-1234\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"x.\\\\d$\"}", "\"x12\"", "\"aaxb3\"", NULL, "\"x1\"",
          "\"x12b\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^[^a-z\\\"]\\\\\\\\(?:\\\\w|\\\\s)$\"}", "\"A\\\\_\"",
          "\"0\\\\\\n\"", "\"\\\\\\\\ \"", NULL, "\"a\\\\b\"", "\"\\\"\\\\b\"", "\"A\\\\-\"");
    CHECK("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-28\"", "\"1999-12-31\"", NULL,
          "\"2024-02-30\"", "\"2024-13-01\"", "\"2024-04-31\"");
    CHECK("{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-02-28T23:59:00Z\"",
          "\"2024-02-28T00:00:00.5+02:00\"", NULL, "\"2024-02-28 00:00:00Z\"", "\"2024-02-28T24:00:00Z\"");
    CHECK("{\"type\":\"string\",\"format\":\"time\"}", "\"01:02:03Z\"", NULL, "\"01:02:60Z\"");
    CHECK("{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"", NULL,
          "\"123e4567-e89b-12d3-a456-42661417400\"");
}

/* Every whole number around the bounds, and fractions between. */
static void numbers_keep_to_their_bounds(void **state)
{
    static const struct {
        int lo, hi;
        bool without_lo, without_hi;
    } bounds[] = {{0, 9, 0, 0},  {-5, 5, 0, 0},   {3, 1234, 1, 0}, {-120, -7, 0, 1},
                  {-1, 0, 1, 0}, {98, 101, 0, 1}, {0, 1, 1, 0},    {-1999, 2001, 1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        for (int fractions = 0; fractions < 2; fractions++) {
            static char text[12000][12];
            const char *list[12002];
            size_t n = 0, k = 0;
            char schema[160];
            snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%d,\"%s\":%d}",
                     fractions ? "number" : "integer", bounds[i].without_lo ? "exclusiveMinimum" : "minimum",
                     bounds[i].lo, bounds[i].without_hi ? "exclusiveMaximum" : "maximum", bounds[i].hi);
            for (int fits = 1; fits >= 0; fits--) {
                for (int v = bounds[i].lo * 2 - 20; v <= bounds[i].hi * 2 + 20; v++) {
                    double x = v / 2.0;
                    bool inside = (bounds[i].without_lo ? x > bounds[i].lo : x >= bounds[i].lo) &&
                                  (bounds[i].without_hi ? x < bounds[i].hi : x <= bounds[i].hi) &&
                                  (fractions || v % 2 == 0);
                    if (inside != fits)
                        continue;
                    snprintf(text[k], sizeof text[k], "%.*f", v % 2 != 0, x);
                    list[n++] = text[k++];
                }
                list[n++] = NULL;
            }
            check(schema, list);
        }
    CHECK("{\"type\":\"number\",\"minimum\":0}", "0", "0.25", "123456", NULL, "-1", "-0.5");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.001", "5", NULL, "0", "0.0", "-1");
    CHECK("{\"type\":\"integer\",\"maximum\":-10}", "-10", "-11", "-100", NULL, "-9", "10", "0");
}

static void values_alternatives_and_references_hold(void **state)
{
    (void)state;
    CHECK("{\"enum\":[\"a\\\"b\",1,null,[1,{\"x\":true}]]}", "\"a\\\"b\"", "1", "null", "[1, {\"x\": true}]",
          NULL, "2", "\"a\"");
    CHECK("{\"type\":\"string\",\"enum\":[\"a\",1]}", "\"a\"", NULL, "1");
    CHECK("{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "\"\"", "3", NULL, "null");
    CHECK(
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"null\"}},"
        "\"required\":[\"k\",\"n\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},"
        "\"required\":[\"k\"]}]}",
        "{\"k\":\"a\",\"n\":null}", "{\"k\":\"b\"}", NULL, "{\"k\":\"a\"}", "{\"k\":\"c\"}");
    CHECK("{\"allOf\":[{\"$ref\":\"#/$defs/"
          "p\"},{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}],"
          "\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":["
          "\"a\"]}}}",
          "{\"a\":1,\"b\":null}", NULL, "{\"a\":1}", "{\"b\":null}");
    CHECK("{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":"
          "\"#\"},"
          "{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}",
          "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}", NULL,
          "{\"v\":1,\"next\":{\"v\":2}}");
    CHECK("{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"null\"}}}", "null", NULL, "1");
}

static void schemas_that_cannot_be_held_to_are_refused_with_their_path(void **state)
{
    static const struct {
        const char *schema, *error;
    } faults[] = {
        {"{\"type\":\"strin\"}", "s: #/type: expected string, number"},
        {"{\"properties\":{\"a\":{\"uniqueItems\":true}}}",
         "s: #/properties/a/\"uniqueItems\": this keyword is not"},
        {"{\"items\":{\"not\":{}}}", "#/items/\"not\""},
        {"{\"items\":[{}]}", "#/items: expected a schema; a list of schemas stands in prefixItems"},
        {"{\"type\":\"string\",\"format\":\"email\"}", "#/format: expected date, time, date-time or uuid"},
        {"{\"minLength\":-1}", "#/minLength: expected a whole number"},
        {"{\"minLength\":3,\"maxLength\":2}", "#/maxLength: less than minLength"},
        {"{\"pattern\":\"a(?=b)\"}", "#/pattern: byte 4: the only supported group with ?"},
        {"{\"pattern\":\"\\\\bx\"}", "#/pattern: byte 2: this escape is not supported"},
        {"{\"pattern\":\"^a|b$\"}", "alternatives with an anchor need parentheses"},
        {"{\"pattern\":\"a\",\"minLength\":1}", "pattern, format and minLength or maxLength together"},
        {"{\"type\":\"number\",\"minimum\":0.5}", "#/minimum: expected a whole number"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "#: no number lies between the bounds"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"minLength\":2}]}", "#/oneOf/1: a value may fit"},
        {"{\"$ref\":\"other.json\"}", "#/$ref: expected a place in this schema"},
        {"{\"$ref\":\"#/$defs/x\"}", "#/$ref: nothing is there"},
        {"{\"$ref\":\"#\"}", "#/$ref: refers to itself"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}",
         "#/allOf/type: two schemas that must both hold"},
        {"{\"properties\":{\"a\":false}}", "#/properties/a: false: no value fits"},
        {"{\"properties\":{},\"required\":[\"x\"],\"additionalProperties\":false}",
         "#/required: names a member"},
        {"{\"enum\":[]}", "#/enum: expected values"},
        {"{\"enum\":[1],\"minimum\":2}", "together with keywords other than type"},
        {"[1]", "s"},
        {"{\"a\":", "s"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct str text = {0};
        struct moeflux_err e;
        const char *schema = faults[i].schema;
        assert_true(json_schema_text_to_grammar(schema, strlen(schema), "s", &text, &e) < 0);
        if (!strstr(e.text, faults[i].error))
            fail_msg("%s: %s", schema, e.text);
        str_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_keywords_any_value_fits),
        cmocka_unit_test(types_are_distinguished),
        cmocka_unit_test(objects_have_their_members_in_order),
        cmocka_unit_test(arrays_have_as_many_items_as_the_schema_says),
        cmocka_unit_test(texts_have_lengths_patterns_and_formats),
        cmocka_unit_test(numbers_keep_to_their_bounds),
        cmocka_unit_test(values_alternatives_and_references_hold),
        cmocka_unit_test(schemas_that_cannot_be_held_to_are_refused_with_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
