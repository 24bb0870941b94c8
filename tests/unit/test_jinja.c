/* The interpreter of chat templates against jinja2: tests/data/jinja.json, written by
 * tests/data/jinja_cases.py with jinja2 3.1.6 and transformers' settings. Then what only we have: places in
 * errors, limits, and who wrote which byte.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "text/jinja/jinja.h"

static struct jinja *parse(const char *template)
{
    struct moeflux_err e = {0};
    struct jinja *t;
    check_ok(jinja_parse(&t, template, strlen(template), "test", &e), &e);
    return t;
}

/* 0 and the text, or the failure of reading or running. */
static int render(const char *template, size_t len, const json_t *context, struct str *out,
                  struct moeflux_err *e)
{
    struct jinja *t;
    int rc = jinja_parse(&t, template, len, "test", e);
    if (rc == 0)
        rc = jinja_render(t, context, 1763874123, out, e);
    jinja_free(t);
    return rc;
}

static void outputs_are_those_of_jinja2(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/data/jinja.json", 0, NULL), *item;
    const json_t *context = json_object_get(root, "context"), *cases = json_object_get(root, "cases");
    size_t i;
    setenv("TZ", "UTC", 1);
    assert_true(json_array_size(cases) > 150);
    json_array_foreach(cases, i, item)
    {
        const json_t *template = json_array_get(item, 0), *wanted = json_array_get(item, 1);
        struct moeflux_err e = {0};
        struct str out = {0};
        int rc = render(json_string_value(template), json_string_length(template), context, &out, &e);
        if (json_is_null(wanted) && rc == 0)
            fail_msg("%s\ngives %s, jinja2 refuses it", json_string_value(template), str_text(&out));
        if (!json_is_null(wanted) && rc < 0)
            fail_msg("%s\n%s", json_string_value(template), e.text);
        if (rc == 0)
            assert_string_equal(str_text(&out), json_string_value(wanted));
        str_free(&out);
    }
    json_decref(root);
}

static void expect_error(const char *template, int code, const char *text)
{
    struct moeflux_err e = {0};
    struct str out = {0};
    json_t *context = json_object();
    str_add_text(&out, "before");
    assert_int_equal(render(template, strlen(template), context, &out, &e), code);
    assert_string_equal(e.text, text);
    assert_string_equal(str_text(&out), "before");
    str_free(&out);
    json_decref(context);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    expect_error("a\n  {{ 1 +", ERR_FORMAT, "test:2:3: {{ without }}");
    expect_error("é{{ nope.x }}", ERR_FORMAT, "test:1:10: 'nope' is undefined");
    expect_error("{% if true %}\n\n{{ 'a' + 1 }}{% endif %}", ERR_FORMAT,
                 "test:3:4: + between a str and a int has no meaning");
    expect_error("\n{{ raise_exception('roles must ' ~ 'alternate') }}", ERR_USAGE,
                 "test:2:4: the template refuses the messages: roles must alternate");
    expect_error("{{ 'a'|shout }}", ERR_UNSUPPORTED, "test:1:8: the filter \"shout\" is not known");
    expect_error("{{ 'a' is loud }}", ERR_UNSUPPORTED, "test:1:11: the test \"loud\" is not known");
    expect_error("{% include 'x' %}", ERR_UNSUPPORTED,
                 "test:1:4: the tag \"include\" is not expected here, or not known");
    expect_error("{% for x in y recursive %}{% endfor %}", ERR_UNSUPPORTED,
                 "test:1:15: recursive loops are not known");
    expect_error("{% if true %}", ERR_FORMAT, "test:1:14: expected elif, found the end of the template");
    expect_error("{{ {}.a.b }}", ERR_FORMAT, "test:1:9: a dict has no member 'a'");
    expect_error("{{ 9223372036854775807 + 1 }}", ERR_UNSUPPORTED,
                 "test:1:4: a whole number has more than 64 bits");
    expect_error("{{ strftime_now('%Q') }}", ERR_UNSUPPORTED, "test:1:4: strftime_now: %Q is not known");
    expect_error("a\xff", ERR_FORMAT, "test: the template is not UTF-8");
}

static void expect_limit(const char *template, struct jinja_limits limits, const char *text)
{
    struct moeflux_err e = {0};
    struct str out = {0}, authors = {0};
    struct jinja *t = parse(template);
    json_t *context = json_object();
    assert_int_equal(jinja_render_authors(t, context, 0, &limits, &out, &authors, &e), ERR_UNSUPPORTED);
    if (!strstr(e.text, text))
        fail_msg("%s: %s", template, e.text);
    assert_int_equal(out.len, 0);
    json_decref(context);
    jinja_free(t);
    str_free(&out);
    str_free(&authors);
}

static void a_rendering_is_bounded(void **state)
{
    (void)state;
    const struct jinja_limits small = {.steps = 100000, .memory = 1 << 21, .output = 1000};
    expect_limit("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
                 (struct jinja_limits){.steps = 100000, .memory = 1 << 28}, "more steps");
    expect_limit(
        "{% set ns = namespace(t='ab') %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
        small, "more memory");
    expect_limit("{{ 'abcdefgh' * 100000000 }}", small, "more memory");
    expect_limit("{% for i in range(300) %}abcd{% endfor %}", small, "more than 1000 bytes");
    expect_limit("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", small, "nested deeper");
    expect_limit("{{ range(1000000) }}", jinja_default_limits, "more than 100000");
    expect_limit("{% set l = [] %}{% for i in [1] %}{% set _ = l.append(l) %}{% endfor %}{{ l }}", small,
                 "nested deeper");
    expect_limit("{% set d = {} %}{% set _ = d.update(a=d) %}{{ d|tojson }}", small, "nested deeper");
    expect_limit("{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}", small, "more");
}

static void a_template_is_bounded(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jinja *t;
    struct str text = {0};
    str_add_text(&text, "{{ ");
    for (int i = 0; i < 5000; i++)
        str_add_text(&text, "(");
    assert_int_equal(jinja_parse(&t, str_text(&text), text.len, "deep", &e), ERR_FORMAT);
    str_clear(&text);
    for (int i = 0; i < 5000; i++)
        str_add_text(&text, "{% if x %}");
    assert_int_equal(jinja_parse(&t, str_text(&text), text.len, "deep", &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "deep:1:994: it is nested deeper than a template may be");
    str_clear(&text);
    for (int i = 0; i < 30000; i++)
        str_add_text(&text, "{{ long }}");
    assert_int_equal(jinja_parse(&t, str_text(&text), text.len, "long", &e), ERR_UNSUPPORTED);
    assert_null(t);
    str_free(&text);
}

/* Each byte of the output as 't' (the template's) or 'c' (the context's). */
static void expect_authors(const char *template, const char *wanted_text, const char *wanted_authors)
{
    struct moeflux_err e = {0};
    struct str out = {0}, authors = {0};
    struct jinja *t = parse(template);
    json_t *context = json_pack("{s:s, s:s, s:[{s:s}], s:{s:i}}", "u", "<x>", "eos_token", "<e>", "ms",
                                "role", "user", "d", "k", 5);
    check_ok(jinja_render_authors(t, context, 0, &jinja_default_limits, &out, &authors, &e), &e);
    assert_string_equal(str_text(&out), wanted_text);
    assert_int_equal(authors.len, out.len);
    for (size_t i = 0; i < authors.len; i++)
        authors.data[i] = authors.data[i] == JINJA_CONTEXT ? 'c' : 't';
    assert_string_equal(str_text(&authors), wanted_authors);
    json_decref(context);
    jinja_free(t);
    str_free(&out);
    str_free(&authors);
}

static void bytes_of_the_context_are_distinguished_from_the_templates(void **state)
{
    (void)state;
    expect_authors("<s>{{ u }}", "<s><x>", "tttccc");
    expect_authors("{{ '[' + u + ']' }}{{ eos_token }}", "[<x>]<e>", "tccctttt");
    expect_authors("{{ ms[0].role|upper ~ '!' }}", "USER!", "cccct");
    expect_authors("{{ (u ~ 'yz').split('>') }}", "['<x', 'yz']", "ttcctttttttt");
    expect_authors("{{ ms|tojson }}", "[{\"role\": \"user\"}]", "tttccccttttccccttt");
    expect_authors("{{ (u ~ eos_token)[::-1] }}", ">e<>x<", "tttccc");
    expect_authors("{{ u|replace('x', '<s>') }}", "<<s>>", "ctttc");
    expect_authors(
        "{% for c in u %}{{ c }}{% endfor %}{{ d.k }}{% set b %}{{ u[1:] }}.{% endset %}{{ b|trim }}",
        "<x>5x>.", "ccctcct");
    expect_authors("{% macro m(a) %}({{ a }}){% endmacro %}{{ m(u) }}{{ [u, '-']|join }}", "(<x>)<x>-",
                   "tccctccct");
}

static void a_template_renders_the_same_many_times(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct jinja *t = parse("{% set ns = namespace(n=0) %}{% for i in range(n) %}{% set ns.n = ns.n + i %}{% "
                            "endfor %}{{ ns.n }}");
    for (int n = 0; n < 50; n++) {
        struct str out = {0}, wanted = {0};
        json_t *context = json_pack("{s:i}", "n", n);
        check_ok(jinja_render(t, context, 0, &out, &e), &e);
        str_addf(&wanted, "%d", n * (n - 1) / 2);
        assert_string_equal(str_text(&out), str_text(&wanted));
        json_decref(context);
        str_free(&out);
        str_free(&wanted);
    }
    jinja_free(t);
}

/* Under the sanitizers of `make asan`: nothing is read past the end. */
static void every_beginning_of_a_template_is_read_or_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{%- macro m(a, b='x\\n') -%}{{ a|default(b, true) }}{%- endmacro %}{# c #}{% raw %}{{ }}{% endraw %}"
        "{% for k, v in d.items() if v is not none %}{{ loop.index ~ k[::-1] }}{% else %}{{ m(1, b=2) }}{% "
        "endfor %}"
        "{% set ns.x = {'a': [1, 2.5e3, (3,)]}['a'][1:] %}{% call m(1) %}{% endcall %}{{ 1 if x in y else z "
        "}}";
    json_t *context = json_pack("{s:{s:i}}", "d", "k", 1);
    for (size_t n = 0; n <= sizeof text - 1; n++) {
        struct moeflux_err e = {0};
        struct str out = {0};
        char *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, text, n);
        if (render(exact, n, context, &out, &e) < 0)
            assert_true(e.text[0] != '\0');
        str_free(&out);
        free(exact);
    }
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_those_of_jinja2),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(a_rendering_is_bounded),
        cmocka_unit_test(a_template_is_bounded),
        cmocka_unit_test(bytes_of_the_context_are_distinguished_from_the_templates),
        cmocka_unit_test(a_template_renders_the_same_many_times),
        cmocka_unit_test(every_beginning_of_a_template_is_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
