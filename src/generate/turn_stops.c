#include "generate/turn_stops.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "generate/generator.h"
#include "generate/prefix.h"
#include "generate/request.h"

/* A shorter piece of a prompt is not worth an evaluation of its own. */
enum { LEAST_GAP = 8, LEAST_SYSTEM = 32 };

/* Returns the length of the common prefix with the prompt of other messages, or, without any (NULL), of
 * another text; 0: they cannot be encoded. Takes ownership of `messages`. */
static uint32_t common_with_other(const struct request *r, struct generator *g, json_t *messages,
                                  const char *text)
{
    struct request other = {.id = json_null(), .options = r->options, .fields = json_copy(r->fields)};
    /* The grammar of calls is not part of the prompt. */
    other.options.must_call = false;
    other.options.prompt = text;
    struct moeflux_err ignored;
    uint32_t same = 0;
    if (other.fields && (!messages || json_object_set_new(other.fields, "messages", messages) == 0) &&
        request_encode(&other, g, &ignored) == 0)
        same = prefix_common(r->tokens.ids, r->tokens.n, other.tokens.ids, other.tokens.n);
    request_free(&other);
    return same;
}

static uint32_t common_with(const struct request *r, struct generator *g, json_t *messages)
{
    return common_with_other(r, g, messages, r->options.prompt);
}

static void add(json_t *messages, const char *role, const char *text)
{
    json_array_append_new(messages, json_pack("{s: s, s: s}", "role", role, "content", text));
}

/* Returns the messages so far, with an answer and another question. */
static json_t *next_turn(const json_t *messages)
{
    json_t *next = json_copy((json_t *)(uintptr_t)messages);
    add(next, "assistant", "x");
    add(next, "user", "x");
    return next;
}

/* Returns the messages so far, with a call and its result. Many templates drop the thinking of earlier turns
 * once another question follows, but keep it while calls follow: then next_turn differs much earlier. */
static json_t *next_call(const json_t *messages)
{
    json_t *next = json_copy((json_t *)(uintptr_t)messages);
    json_array_append_new(next, json_pack("{s: s, s: s, s: [{s: s, s: s, s: {s: s, s: {}}}]}", "role",
                                          "assistant", "content", "", "tool_calls", "id", "x", "type",
                                          "function", "function", "name", "x", "arguments"));
    json_array_append_new(
        next, json_pack("{s: s, s: s, s: s}", "role", "tool", "tool_call_id", "x", "content", "x"));
    return next;
}

/* Returns another question after the system text, if there is one. */
static json_t *other_start(const json_t *messages, const char *question)
{
    json_t *first = json_array_get(messages, 0), *start = json_array();
    const char *role = json_string_value(json_object_get(first, "role"));
    if (role && strcmp(role, "system") == 0)
        json_array_append(start, first);
    add(start, "user", question);
    return start;
}

/* Returns the messages with another question in the place of the last one. */
static json_t *other_end(const json_t *messages, const char *question)
{
    json_t *other = json_copy((json_t *)(uintptr_t)messages);
    json_array_remove(other, json_array_size(other) - 1);
    add(other, "user", question);
    return other;
}

void turn_stops_find(const struct request *r, struct generator *g, struct prefix_stops *st)
{
    const json_t *messages = json_object_get(r->fields, "messages");
    uint32_t n = (uint32_t)r->tokens.n;
    *st = (struct prefix_stops){0};
    if (!json_array_size(messages)) {
        /* The next prompt may be longer, or the same again. */
        prefix_stop_at(st, n - 1, 1);
        st->n_shared = n;
        return;
    }
    uint32_t next = common_with(r, g, next_turn(messages));
    uint32_t call = r->options.tools ? common_with(r, g, next_call(messages)) : 0;
    /* The whole prompt stays; its last token is left to evaluate for its logits. */
    next = next == n ? n - 1 : next;
    call = call == n ? n - 1 : call;
    /* Line ends of a call may join those before it in one token, so that its prompt differs a little earlier.
     * There is one checkpoint then, which serves both. */
    if (call > 0 && call < next && next - call < LEAST_GAP)
        next = call;
    uint32_t system = common_with(r, g, other_start(messages, "x"));
    st->n_shared = system;
    if (next > 0 && next < n)
        prefix_stop_at(st, next, 1);
    prefix_stop_at(st, call, LEAST_GAP);
    if (system >= LEAST_SYSTEM && system < n)
        prefix_stop_at(st, system, LEAST_GAP);
}

/* Returns the number of tokens that do not depend on the question after them: two others begin in different
 * ways, and one of the two differs from the request's at its first character. */
static uint32_t before_question(const struct request *r, struct generator *g, const json_t *messages,
                                json_t *(*other)(const json_t *messages, const char *question))
{
    static const char *const questions[] = {"x", "7"};
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < 2; i++) {
        uint32_t same =
            common_with_other(r, g, messages ? other(messages, questions[i]) : NULL, questions[i]);
        least = same < least ? same : least;
    }
    return least;
}

/* Returns the length of the text up to its last blank line, with that; 0: no text follows one. Lines may
 * end with CR LF. */
static size_t before_paragraph(const char *text)
{
    size_t found = 0;
    for (const char *at = strchr(text, '\n'); at; at = strchr(at + 1, '\n')) {
        const char *next = at[1] == '\r' ? at + 2 : at + 1;
        if (*next == '\n' && next[1 + strspn(next + 1, "\r\n")])
            found = (size_t)(next + 1 - text);
    }
    return found;
}

/* Returns the number of tokens before a raw prompt's last paragraph: examples of many prompts end there. */
static uint32_t before_raw_question(const struct request *r, struct generator *g)
{
    size_t n = r->options.prompt ? before_paragraph(r->options.prompt) : 0;
    char *other = n ? malloc(n + 2) : NULL;
    if (!other)
        return 0;
    memcpy(other, r->options.prompt, n);
    other[n + 1] = '\0';
    other[n] = 'x';
    uint32_t x = common_with_other(r, g, NULL, other);
    other[n] = '7';
    uint32_t seven = common_with_other(r, g, NULL, other);
    free(other);
    return x < seven ? x : seven;
}

void turn_stops_find_cuts(const struct request *r, struct generator *g, struct prefix_cuts *cuts)
{
    const json_t *messages = json_object_get(r->fields, "messages");
    size_t n_messages = json_array_size(messages);
    uint32_t n = (uint32_t)r->tokens.n;
    *cuts = (struct prefix_cuts){0};
    if (n <= PREFIX_LEAST_CUT)
        return;
    if (r->options.raw) {
        prefix_cut_at(cuts, before_raw_question(r, g), n);
        return;
    }
    prefix_cut_at(cuts, before_question(r, g, n_messages ? messages : NULL, other_start), n);
    const char *role = json_string_value(json_object_get(json_array_get(messages, n_messages - 1), "role"));
    if (n_messages > 2 && role && strcmp(role, "user") == 0)
        prefix_cut_at(cuts, before_question(r, g, messages, other_end), n);
}

void turn_stops_cut(const struct request *r, struct generator *g, const struct prefix_stops *st,
                    struct prefix_cuts *cuts)
{
    *cuts = (struct prefix_cuts){0};
    if (r->options.raw)
        turn_stops_find_cuts(r, g, cuts);
    else
        prefix_cut_at(cuts, st->n_shared, (uint32_t)r->tokens.n);
}
