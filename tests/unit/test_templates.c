/* Published chat templates against jinja2. tests/data/templates.json, written by
 * tests/data/template_cases.py, has conversations and hashes of their renderings. The templates lie in the
 * directory MOEFLUX_TEMPLATES; without it the test is skipped. A template other than that of the hashes is
 * skipped, too. Templates of families whose models have none render as the published ones.
 *
 * suites: check fast */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "check.h"
#include "text/chat/chat.h"
#include "text/chat/chat_families.h"
#include "text/jinja/jinja.h"

/* FNV-1a. */
static uint64_t hash_of(const char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001b3u;
    return h;
}

struct wanted {
    const json_t *texts; /* renderings, written with --texts; NULL: hashes */
    const char *hashes;  /* 16 digits, "-" or "?" (anything) each, with a space between */
};

/* Returns whether rendering `i`, or the refusal (text NULL), is what jinja2 gives. */
static bool is_wanted(struct wanted *w, size_t i, const struct str *text)
{
    char found[24];
    if (w->texts) {
        const json_t *one = json_array_get(w->texts, i);
        return text ? json_is_string(one) && !strcmp(json_string_value(one), str_text(text))
                    : json_is_null(one);
    }
    snprintf(found, sizeof found, "%016" PRIx64, text ? hash_of(str_text(text), text->len) : 0);
    size_t n = strcspn(w->hashes, " ");
    bool same = text ? n == 16 && !memcmp(w->hashes, found, n) : n == 1 && *w->hashes == '-';
    same |= n == 1 && *w->hashes == '?';
    w->hashes += n + (w->hashes[n] == ' ');
    return same;
}

/* Returns how many renderings differ. */
static int check_template(const char *name, const char *source, size_t len, const json_t *root,
                          struct wanted w)
{
    const json_t *contexts = json_object_get(root, "contexts");
    struct moeflux_err e = {0};
    struct jinja *t;
    int n_bad = 0;
    check_ok(jinja_parse(&t, source, len, name, &e), &e);
    for (size_t i = 0; i < json_array_size(contexts); i++) {
        struct str text = {0};
        e = (struct moeflux_err){0};
        int rc = jinja_render(t, json_array_get(contexts, i),
                              (time_t)json_integer_value(json_object_get(root, "now")), &text, &e);
        /* What this interpreter lacks is not a refusal of jinja2's. */
        bool is_lack = rc < 0 && (e.code == ERR_UNSUPPORTED || e.code == ERR_MEMORY);
        if ((!is_wanted(&w, i, rc == 0 ? &text : NULL) || is_lack) && ++n_bad <= 2)
            print_error("%s: conversation %zu: %s\n", name, i, rc < 0 ? e.text : str_text(&text));
        str_free(&text);
    }
    jinja_free(t);
    return n_bad;
}

static void renderings_are_those_of_jinja2(void **state)
{
    const char *dir = getenv("MOEFLUX_TEMPLATES"), *cases = getenv("MOEFLUX_TEMPLATE_CASES");
    json_t *root = json_load_file(cases ? cases : "tests/data/templates.json", 0, NULL), *entry;
    const char *name;
    int n_bad = 0, n_templates = 0;
    (void)state;
    setenv("TZ", "UTC", 1);
    if (!dir) {
        print_message("SKIP CASE: MOEFLUX_TEMPLATES does not name a directory of chat templates\n");
        json_decref(root);
        return;
    }
    json_object_foreach(json_object_get(root, "templates"), name, entry)
    {
        struct moeflux_err e = {0};
        const json_t *wanted = json_array_get(entry, 1);
        char *path = file_join(dir, name, &e), *source = NULL, hash[24];
        size_t len = 0;
        if (path && file_exists(path))
            check_ok(file_read_text(path, 1 << 20, &source, &len, &e), &e);
        snprintf(hash, sizeof hash, "%016" PRIx64, source ? hash_of(source, len) : 0);
        if (!source || strcmp(hash, json_string_value(json_array_get(entry, 0))) != 0) {
            print_message("SKIP CASE: %s: not there, or another one\n", name);
        } else {
            n_templates++;
            n_bad += check_template(
                name, source, len, root,
                (struct wanted){json_is_array(wanted) ? wanted : NULL, json_string_value(wanted)});
        }
        free(path);
        free(source);
    }
    print_message("%d templates\n", n_templates);
    json_decref(root);
    assert_int_equal(n_bad, 0);
    assert_true(n_templates > 0);
}

static void a_familys_own_template_renders_as_the_published_one(void **state)
{
    json_t *root = json_load_file("tests/data/templates.json", 0, NULL);
    const json_t *kimi = json_object_get(json_object_get(root, "templates"), "Kimi-K3.jinja");
    const struct {
        const char *family;
        const json_t *hashes;
    } published[] = {
        {"kimi-k3", json_array_get(kimi, 1)},
        /* The repository has a program; the template of llama.cpp writes something else in places. */
        {"deepseek-v4", json_object_get(json_object_get(root, "encoders"), "deepseek-v4")}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct chat_family *own = chat_family_find(published[i].family);
        assert_true(own && json_is_string(published[i].hashes));
        assert_int_equal(check_template(own->name, own->text, strlen(own->text), root,
                                        (struct wanted){.hashes = json_string_value(published[i].hashes)}),
                         0);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renderings_are_those_of_jinja2),
        cmocka_unit_test(a_familys_own_template_renders_as_the_published_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
