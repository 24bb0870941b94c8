/* Schemas as grammars: which texts fit, which schemas are refused.
 *
 * suites: check fast asan */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
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
        {"{\"properties\":{\"a\":{\"uniqueItems\":true}}}", "s: #/properties/a/uniqueItems: true, unless"},
        {"{\"items\":{\"not\":{}}}", "#/items/\"not\": this keyword is not"},
        {"{\"items\":[{}],\"prefixItems\":[{}]}", "#/items: expected a schema next to prefixItems"},
        {"{\"type\":\"string\",\"format\":\"regex\"}", "#/format: this format is not known"},
        {"{\"minLength\":-1}", "#/minLength: expected a whole number"},
        {"{\"minLength\":1.5}", "#/minLength: expected a whole number"},
        {"{\"minLength\":1048577}", "#/minLength: expected at most 1048576"},
        {"{\"pattern\":\"a(?=b)\"}", "#/pattern: byte 4: the only supported group with ?"},
        {"{\"pattern\":\"\\\\bx\"}", "#/pattern: byte 2: this escape is not supported"},
        {"{\"pattern\":\"^a|b$\"}", "alternatives with an anchor need parentheses"},
        {"{\"pattern\":\"a{3,2}\"}", "this repetition ends before it begins"},
        {"{\"type\":\"number\",\"minimum\":\"1\"}", "#/minimum: expected a number"},
        {"{\"minimum\":18446744073709551615}", "#/minimum: a bound of more than 16 digits"},
        {"{\"maximum\":9007199254740993.0}", "#/maximum: expected a whole number of 16 digits"},
        {"{\"enum\":[18446744073709551615]}", "a number in const or enum beyond 64 bits"},
        {"{\"multipleOf\":0}", "#/multipleOf: expected a number over 0"},
        {"{\"multipleOf\":1e-12}", "#/multipleOf: expected a number below"},
        {"{\"type\":\"integer\",\"multipleOf\":99991}", "#/multipleOf: its multiples have too many forms"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"minLength\":2}]}", "#/oneOf/0: a value may fit"},
        {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "#/oneOf/0: a value may fit"},
        {"{\"$ref\":\"other.json\"}", "#/$ref: expected a place in this schema"},
        {"{\"$ref\":\"#/$defs/x\"}", "#/$ref: nothing is there"},
        {"{\"$ref\":\"#\"}", "#/$ref: refers to itself"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "$ref: refers to itself"},
        {"{\"items\":{\"$ref\":\"#/a\"},\"a\":1,\"$defs\":{\"b\":{\"$id\":\"c\"}}}", "#/\"a\": this keyword"},
        {"{\"items\":{\"$ref\":\"#/$defs/b\"},\"$defs\":{\"b\":{\"$id\":\"c\"}}}", "together with an $id"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}",
         "/pattern: two schemas that must both hold"},
        {"{\"enum\":[[1]],\"minItems\":2}", "#/minItems: together with a listed value"},
        {"{\"propertyNames\":{\"pattern\":\"a\"},\"properties\":{\"b\":{}}}",
         "#/pattern: together with listed texts or names"},
        {"{\"minProperties\":2}", "#/minProperties: expected as many names under required"},
        {"{\"patternProperties\":{\"a\":{}},\"properties\":{\"a\":{}}}", "#/patternProperties: expected one"},
        {"[1]", "s"},
        {"{\"a\":", "s"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct str text = {0};
        struct moeflux_err e;
        const char *schema = faults[i].schema;
        if (json_schema_text_to_grammar(schema, strlen(schema), "s", &text, &e) == 0)
            fail_msg("%s is not refused", schema);
        if (!strstr(e.text, faults[i].error))
            fail_msg("%s: %s", schema, e.text);
        str_free(&text);
    }
}

/* Keywords that concern the rest of an object or array concern the schema object that they stand in. */
static void schemas_that_must_both_hold_are_merged_exactly(void **state)
{
    (void)state;
    CHECK("{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"}]}],\"items\":{\"type\":\"string\"}}", "[]",
          NULL, "[1]", "[1,\"a\"]", "[\"a\"]");
    CHECK("{\"allOf\":[{\"prefixItems\":[{\"minimum\":3}]}],\"items\":{\"minimum\":5}}", "[5]", "[5,6]", NULL,
          "[3]", "[3,5]", "[5,4]");
    CHECK("{\"allOf\":[{\"properties\":{\"foo\":{}}}],\"additionalProperties\":{\"type\":\"boolean\"}}",
          "{\"foo\":true,\"bar\":false}", "{}", NULL, "{\"foo\":1}", "{\"foo\":1,\"bar\":true}");
    CHECK("{\"allOf\":[{\"additionalProperties\":{\"type\":\"integer\"}}],\"properties\":{\"ab\":{"
          "\"minLength\":"
          "2}}}",
          "{}", "{\"x\":1}", NULL, "{\"ab\":\"a1\"}", "{\"x\":\"a\"}");
    CHECK("{\"anyOf\":[{\"properties\":{\"a\":{\"type\":\"null\"}}}],\"additionalProperties\":{\"type\":"
          "\"boolean\"}}",
          "{}", "{\"b\":true}", NULL, "{\"a\":null}");
    CHECK("{\"$ref\":\"#/$defs/"
          "d\",\"additionalProperties\":false,\"$defs\":{\"d\":{\"properties\":{\"a\":{}}}}}",
          "{}", NULL, "{\"a\":1}");
    CHECK("{\"allOf\":[{\"minimum\":2},{\"maximum\":4},{\"minimum\":3,\"type\":\"number\"},{\"type\":["
          "\"string\","
          "\"integer\"]}]}",
          "3", "4", NULL, "2", "5", "3.5", "\"a\"");
    CHECK("{\"allOf\":[{\"enum\":[1,2,\"a\"]},{\"enum\":[2.0,\"a\",3]}],\"type\":\"integer\"}", "2", NULL,
          "1", "3", "\"a\"");
    CHECK("{\"anyOf\":[{\"minimum\":3},{\"type\":\"string\"}],\"allOf\":[{\"anyOf\":[{\"maximum\":5},{"
          "\"maxLength"
          "\":1}]}],\"type\":[\"integer\",\"string\"]}",
          "4", "3", "\"a\"", "6", NULL, "2", "1.5");
    CHECK("{\"allOf\":[{\"multipleOf\":4},{\"multipleOf\":6}],\"type\":\"integer\"}", "12", "0", "-24", NULL,
          "4", "6", "18");
    /* A recursive schema that is merged with another one in each round. */
    CHECK("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"allOf\":[{\"$ref\":\"#/$defs/"
          "m\"},{\"properties\":{\"n\":"
          "{\"$ref\":\"#/$defs/n\"}}}]},\"m\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/"
          "m\"},"
          "\"v\":{\"type\":\"integer\"}}}}}",
          "{\"n\":{\"n\":{\"v\":1}}}", NULL, "{\"n\":{\"n\":{\"v\":\"\"}}}");
    CHECK("{\"properties\":{\"a\":false,\"b\":{}}}", "{\"b\":1}", "{}", NULL, "{\"a\":1}");
    CHECK("{\"anyOf\":[false,{\"type\":\"null\"}]}", "null", NULL, "1");
    CHECK("{\"type\":\"array\",\"items\":false}", "[]", NULL, "[1]");
}

static void schemas_that_nothing_fits_have_no_grammar(void **state)
{
    static const char *const schemas[] = {
        "{\"minLength\":3,\"maxLength\":2}",
        "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}",
        "{\"type\":\"integer\",\"exclusiveMinimum\":5,\"exclusiveMaximum\":6}",
        "{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}",
        "{\"properties\":{},\"required\":[\"x\"],\"additionalProperties\":false}",
        "{\"enum\":[]}",
        "{\"enum\":[1],\"minimum\":2}",
        "{\"type\":\"array\",\"items\":false,\"minItems\":1}",
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"},\"minItems\":3}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        struct str text = {0};
        struct grammar *g;
        struct moeflux_err e;
        check_ok(json_schema_text_to_grammar(schemas[i], strlen(schemas[i]), "s", &text, &e), &e);
        if (grammar_compile(&g, str_text(&text), text.len, "g", &e) == 0)
            fail_msg("%s: a text fits", schemas[i]);
        assert_non_null(strstr(e.text, "no text fits"));
        str_free(&text);
    }
}

static void keywords_of_generators_are_taken(void **state)
{
    (void)state;
    CHECK("{\"x-order\":3,\"title\":\"T\",\"deprecated\":true,\"example\":1,\"type\":\"null\"}", "null", NULL,
          "1");
    CHECK("{\"type\":\"string\",\"nullable\":true}", "null", "\"\"", NULL, "1");
    CHECK("{\"type\":\"array\",\"items\":[{\"type\":\"null\"}],\"additionalItems\":false}", "[]", "[null]",
          NULL, "[1]", "[null,1]");
    CHECK("{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":true}", "4", NULL, "3");
    /* A discriminated union whose members have a default, so they are not required. */
    CHECK("{\"discriminator\":{\"propertyName\":\"k\"},\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/"
          "$defs/b\"}"
          "],\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\",\"default\":\"a\"}}"
          "},\"b\":{"
          "\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},\"n\":{\"type\":\"null\"}}}}}",
          "{\"k\":\"a\"}", "{\"k\":\"b\",\"n\":null}", NULL, "{}", "{\"k\":\"a\",\"n\":null}",
          "{\"n\":null}");
    CHECK("{\"type\":\"array\",\"uniqueItems\":false}", "[1,1]", NULL, "1");
    CHECK("{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", "[1]", "[]", NULL, "[1,1]");
    CHECK("{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":1,\"maxItems\":2,\"items\":{\"enum\":[\"a\","
          "1,1.0,"
          "\"b\"]}}",
          "[\"a\"]", "[\"a\",1]", "[1,\"b\"]", NULL, "[]", "[\"a\",\"a\"]", "[1,1.0]", "[\"a\",1,\"b\"]");
    CHECK(
        "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":"
        "\"integer\"},\"required\":[\"b\"]}",
        "{\"b\":1}", "{\"b\":1,\"a\":2}", NULL, "{\"a\":1}", "{\"b\":1,\"c\":1}", "{\"b\":\"\"}");
    CHECK("{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2}}", "{\"ab\":1}", NULL, "{\"abc\":1}");
    CHECK("{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},\"properties\":{\"a\":{},\"abc\":{}}}",
          "{\"a\":1}", NULL, "{\"abc\":1}");
    CHECK("{\"patternProperties\":{\"^x-\":{\"type\":\"null\"}}}", "{\"x-a\":null}", "{}", NULL,
          "{\"x-a\":1}", "{\"a\":null}");
    CHECK("{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1}", "{\"a\":1,\"b\":2}",
          NULL, "{}", "{\"a\":1,\"b\":2,\"c\":3}");
    CHECK("{\"type\":\"string\",\"contentEncoding\":\"base64\"}", "\"YWI=\"", "\"\"", NULL, "\"a%==\"",
          "\"abc\"");
    CHECK("{\"type\":\"integer\",\"enum\":[1,2.0,2.5]}", "1", "2.0", NULL, "2.5");
    CHECK("{\"enum\":[\"a\",\"abc\",3,7],\"maxLength\":2,\"minimum\":5}", "\"a\"", "7", NULL, "\"abc\"", "3");
    CHECK("{\"const\":0.1}", "0.1", NULL, "0.10000000000000001");
    CHECK("{\"const\":0.30000000000000004}", "0.30000000000000004", NULL, "0.3");
}

static void bounds_may_have_fractions_and_many_digits(void **state)
{
    (void)state;
    CHECK("{\"type\":\"number\",\"minimum\":0.5}", "0.5", "0.51", "1", "0.50", "7.25", NULL, "0.4", "0",
          "0.499", "-1", "1e3");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":2.25}", "0.5000001", "1", "2.25", "2.2",
          "2", "2.250", NULL, "0.5", "0.500", "2.26", "2.251", "3");
    CHECK("{\"type\":\"number\",\"minimum\":-2.5,\"exclusiveMaximum\":-0.125}", "-2.5", "-0.126", "-1", NULL,
          "-2.51", "-0.125", "-0.1", "0", "1");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", "0.5", "0.000001", NULL, "0",
          "1", "0.0", "1.0");
    /* Doubles do not tell these numbers from the bound. */
    CHECK("{\"type\":\"number\",\"exclusiveMaximum\":5}", "4.99999999999999", NULL, "4.9999999999999999");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0.1}", "0.10000000000001", NULL, "0.10000000000000001");
    CHECK("{\"type\":\"number\",\"minimum\":0.30000000000000004}", "0.300000000000001", NULL, "0.3");
    CHECK("{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", "1", "2", NULL, "0", "3");
    CHECK("{\"type\":\"integer\",\"minimum\":2,\"exclusiveMinimum\":3,\"maximum\":9,\"exclusiveMaximum\":6}",
          "4", "5", NULL, "3", "6");
    CHECK("{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}", "0", "9999999999999999",
          NULL, "-1", "18446744073709551616");
    CHECK("{\"type\":\"number\",\"exclusiveMaximum\":1e26}", "5", NULL, "1e26");
    CHECK("{\"type\":\"integer\",\"minimum\":9999999999999998}", "9999999999999999", NULL,
          "9999999999999997");
}

static void multiples_are_counted(void **state)
{
    static char text[2400][12];
    const char *list[2402];
    (void)state;
    for (int step = 1; step <= 60; step = step * 3 / 2 + 1) {
        char schema[120];
        size_t n = 0;
        snprintf(schema, sizeof schema,
                 "{\"type\":\"integer\",\"multipleOf\":%d,\"minimum\":-97,\"exclusiveMaximum\":1100}", step);
        for (int fits = 1; fits >= 0; fits--) {
            for (int v = -130; v <= 1130; v++)
                if ((v % step == 0 && v >= -97 && v < 1100) == fits) {
                    snprintf(text[n], sizeof text[n], "%d", v);
                    list[n] = text[n];
                    n++;
                }
            list[n++] = NULL;
        }
        check(schema, list);
    }
    CHECK("{\"type\":\"number\",\"multipleOf\":0.01}", "0.07", "12", "-3.5", "1.25", NULL, "0.001", "1.255");
    CHECK("{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":0.3,\"maximum\":1}", "0.5", "0.75", "1",
          "1.0", NULL, "0.25", "0.3", "1.25", "0.6");
    CHECK("{\"type\":\"number\",\"multipleOf\":2.5}", "5", "7.5", "0", NULL, "2", "7", "1.5");
    CHECK("{\"type\":\"integer\",\"multipleOf\":0.5}", "3", NULL, "0.5");
    CHECK("{\"type\":\"integer\",\"multipleOf\":100}", "300", "0", "-1200", NULL, "50", "110");
}

static void patterns_and_formats_keep_to_lengths(void **state)
{
    (void)state;
    CHECK("{\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":4}", "\"ab\"", "\"abcd\"", NULL, "\"a\"",
          "\"abcde\"");
    CHECK("{\"pattern\":\"^(ab)*$\",\"minLength\":3,\"maxLength\":6}", "\"abab\"", "\"ababab\"", NULL,
          "\"ab\"", "\"abababab\"");
    CHECK("{\"pattern\":\"^\\\\w+@\\\\w+$\",\"maxLength\":7}", "\"abc@abc\"", "\"a@b\"", NULL,
          "\"abcd@abc\"");
    CHECK("{\"pattern\":\"b\",\"maxLength\":3}", "\"b\"", "\"abc\"", NULL, "\"abca\"", "\"aaa\"");
    CHECK("{\"pattern\":\"^(a|bcd)$\",\"minLength\":2}", "\"bcd\"", NULL, "\"a\"");
    CHECK("{\"pattern\":\"^(abc)?$\",\"maxLength\":2}", "\"\"", NULL, "\"abc\"");
    CHECK("{\"pattern\":\"^[0-9]{3,5}$\",\"maxLength\":10}", "\"123\"", "\"12345\"", NULL, "\"12\"");
    CHECK("{\"pattern\":\"^a\",\"format\":\"email\"}", "\"ab\"", NULL, "\"b\"");
    CHECK("{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
          "\"https://a.example/b?c=d\"", NULL, "\"a\"");
    CHECK("{\"type\":\"string\",\"maxLength\":100000000}", "\"abc\"", NULL, "1");
    CHECK("{\"pattern\":\"^\\\\S$\"}", "\"a\"", "\"\xc3\xa9\"", NULL, "\" \"", "\"\xc2\xa0\"",
          "\"\xe2\x80\x83\"");
}

static void formats_are_those_that_generators_write(void **state)
{
    (void)state;
    CHECK("{\"format\":\"email\"}", "\"a.b+c@mail.example.org\"", NULL, "\"a\"", "\"a@\"", "\"@b.de\"",
          "\"a@b\"", "\"a..b@c.de\"");
    CHECK("{\"format\":\"uri\"}", "\"https://example.org\"", "\"ftp://1.2.3.4:80/a%20b#c\"", NULL,
          "\"example.org\"", "\"https://\"", "\"http://a b\"");
    CHECK("{\"format\":\"hostname\"}", "\"localhost\"", "\"a-b.example\"", NULL, "\"-a\"", "\"a..b\"",
          "\"a_b\"");
    CHECK("{\"format\":\"ipv4\"}", "\"0.0.0.0\"", "\"192.168.1.255\"", NULL, "\"256.1.1.1\"", "\"1.2.3\"",
          "\"01.2.3.4\"");
    CHECK("{\"format\":\"ipv6\"}", "\"::\"", "\"::1\"", "\"2001:db8::ff00:42:8329\"", "\"1:2:3:4:5:6:7:8\"",
          NULL, "\"1::2::3\"", "\"12345::\"", "\"1:2:3\"", "\":1\"");
    CHECK("{\"format\":\"duration\"}", "\"P3D\"", "\"PT1H30M\"", "\"P1Y2M3DT4S\"", "\"P2W\"", NULL, "\"P\"",
          "\"PT\"", "\"P1YT\"", "\"P1S\"", "\"P1Y2D\"");
    CHECK("{\"format\":\"uuid4\"}", "\"123e4567-e89b-42d3-a456-426614174000\"", NULL,
          "\"123e4567-e89b-12d3-a456-426614174000\"");
    CHECK("{\"format\":\"byte\"}", "\"YWJj\"", "\"YQ==\"", NULL, "\"YQ\"", "\"Y===\"");
    CHECK("{\"format\":\"binary\"}", "\"\"", "\"a b\"", NULL, "1");
    CHECK("{\"format\":\"int32\",\"type\":\"integer\"}", "5", NULL, "\"a\"");
}

/* ---- JSON-Schema-Test-Suite ---- */

struct suite {
    unsigned n_schemas, n_refused; /* groups; those whose schema is refused */
    unsigned n_valid, n_fit;       /* documents that are valid; those that fit */
    unsigned n_wrong;              /* documents that fit and are not valid */
};

static void check_document(struct suite *s, struct constraint *c, const json_t *test, size_t flags)
{
    struct moeflux_err e;
    char *text = json_dumps(json_object_get(test, "data"), JSON_ENCODE_ANY | flags);
    bool is_valid = json_is_true(json_object_get(test, "valid"));
    assert_non_null(text);
    check_ok(constraint_reset(c, &e), &e);
    bool fits = constraint_accept_bytes(c, text, strlen(text), NULL) == 0 && constraint_may_end(c);
    s->n_valid += is_valid;
    s->n_fit += fits && is_valid;
    if (fits && !is_valid && ++s->n_wrong <= 10)
        print_error("%s: %s fits\n", json_string_value(json_object_get(test, "description")), text);
    free(text);
}

static void check_group(struct suite *s, const json_t *group, const struct token_trie *t)
{
    struct str text = {0};
    struct grammar *g;
    struct constraint *c;
    struct moeflux_err e;
    const json_t *test;
    size_t i;
    char *schema = json_dumps(json_object_get(group, "schema"), JSON_ENCODE_ANY);
    s->n_schemas++;
    if (json_schema_text_to_grammar(schema, strlen(schema), "s", &text, &e) < 0 ||
        grammar_compile(&g, str_text(&text), text.len, "g", &e) < 0) {
        s->n_refused++;
    } else {
        check_ok(constraint_new(&c, g, t, NULL, 0, &e), &e);
        json_array_foreach(json_object_get(group, "tests"), i, test)
        {
            check_document(s, c, test, 0);
            check_document(s, c, test, JSON_COMPACT);
        }
        constraint_free(c);
    }
    str_free(&text);
    free(schema);
}

static void check_draft(struct suite *s, const char *suite, const char *draft)
{
    static char bytes[256];
    struct moeflux_err e;
    struct token_trie *t;
    struct dirent *file;
    char *folder = file_join(suite, draft, &e);
    DIR *dir = opendir(folder);
    if (!dir)
        fail_msg("%s is not there", folder);
    check_ok(token_trie_new(&t, &(struct token_source){1, byte_text, bytes}, &e), &e);
    while ((file = readdir(dir))) {
        char *path = file_join(folder, file->d_name, &e);
        json_t *groups = strstr(path, ".json") ? json_load_file(path, JSON_ALLOW_NUL, NULL) : NULL;
        for (size_t i = 0; i < json_array_size(groups); i++)
            check_group(s, json_array_get(groups, i), t);
        json_decref(groups);
        free(path);
    }
    closedir(dir);
    token_trie_free(t);
    free(folder);
}

/* The suite is in the source of PyPI's jsonschema (json/tests). A schema may be refused and a valid
 * document may not fit, but no invalid one may. */
static void no_invalid_document_of_the_published_suite_fits(void **state)
{
    static const char *const drafts[] = {"draft6", "draft7", "draft2019-09", "draft2020-12"};
    const char *suite = getenv("MOEFLUX_SCHEMA_SUITE");
    (void)state;
    if (!suite) {
        print_message("SKIP CASE: MOEFLUX_SCHEMA_SUITE does not name the tests of JSON-Schema-Test-Suite\n");
        return;
    }
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        struct suite s = {0};
        check_draft(&s, suite, drafts[i]);
        print_message("%s: %u schemas, %u refused; %u of %u valid documents fit\n", drafts[i], s.n_schemas,
                      s.n_refused, s.n_fit, s.n_valid);
        assert_true(s.n_fit > 0);
        assert_int_equal(s.n_wrong, 0);
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
        cmocka_unit_test(schemas_that_must_both_hold_are_merged_exactly),
        cmocka_unit_test(schemas_that_nothing_fits_have_no_grammar),
        cmocka_unit_test(keywords_of_generators_are_taken),
        cmocka_unit_test(bounds_may_have_fractions_and_many_digits),
        cmocka_unit_test(multiples_are_counted),
        cmocka_unit_test(patterns_and_formats_keep_to_lengths),
        cmocka_unit_test(formats_are_those_that_generators_write),
        cmocka_unit_test(schemas_that_cannot_be_held_to_are_refused_with_their_path),
        cmocka_unit_test(no_invalid_document_of_the_published_suite_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
