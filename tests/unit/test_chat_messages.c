/* Messages of a request: the arguments of earlier calls.
 *
 * suites: check fast asan */
#include "check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_sent.h"
#include "generate/chat_messages.h"

static void expect(const char *arguments, const char *expected)
{
    struct moeflux_err e = {0};
    bool has_calls;
    json_t *out, *from = json_pack("[{s: s, s: n, s: [{s: {s: s, s: s}}]}, {s: s, s: s}]", "role",
                                   "assistant", "content", "tool_calls", "function", "name", "f", "arguments",
                                   arguments, "role", "tool", "content", "1");
    check_ok(chat_messages_read(from, NULL, ARGUMENTS_OBJECTS, &out, &has_calls, "a test", &e), &e);
    assert_true(has_calls);
    json_t *call = json_array_get(json_object_get(json_array_get(out, 0), "tool_calls"), 0);
    char *got = json_sent_dump(json_object_get(json_object_get(call, "function"), "arguments"), 0);
    assert_string_equal(got, expected);
    free(got);
    json_decref(from);
    json_decref(out);
}

static void numbers_of_any_size_reach_the_template(void **state)
{
    (void)state;
    expect("{\"n\": 1, \"m\": -9223372036854775808}", "{\"n\": 1, \"m\": -9223372036854775808}");
    expect("{\"n\": 12345678901234567890}", "{\"n\": 12345678901234567890}");
    expect("{\"a\": \"\\\" 12345678901234567890\", \"n\": [-12345678901234567890, 1.5e3]}",
           "{\"a\": \"\\\" 12345678901234567890\", \"n\": [-12345678901234567890, 1500.0]}");
}

static void arguments_of_a_call_that_was_cut_are_kept_as_a_text(void **state)
{
    (void)state;
    expect("{\"n\": 1", "{\"arguments\": \"{\\\"n\\\": 1\"}");
    expect("", "{}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_any_size_reach_the_template),
        cmocka_unit_test(arguments_of_a_call_that_was_cut_are_kept_as_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
