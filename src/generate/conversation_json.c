#include "generate/conversation_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/conversation.h"
#include "text/utf8.h"

enum { FORMAT = 1 };

void conversation_model_free(struct conversation_model *m)
{
    free(m->dir);
    *m = (struct conversation_model){0};
}

/* ---- writing ---- */

/* Returns the text with each NUL replaced by U+FFFD: our JSON reader takes none. */
static json_t *text_json(const struct str *s)
{
    struct str clean = {0};
    const char *at = str_text(s), *end = at + s->len;
    while (at < end) {
        size_t n = strnlen(at, (size_t)(end - at));
        str_add(&clean, at, n);
        at += n;
        if (at < end && *at == '\0') {
            str_add_text(&clean, "\xef\xbf\xbd");
            at++;
        }
    }
    json_t *text = str_ok(&clean) ? utf8_json(str_text(&clean), clean.len) : NULL;
    str_free(&clean);
    return text;
}

static json_t *turn_json(const struct turn *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "question", text_json(&t->question));
    if (t->answered && t->thinking.len)
        json_object_set_new(object, "thinking", text_json(&t->thinking));
    if (t->answered) {
        json_object_set_new(object, "answer", text_json(&t->answer));
        json_object_set_new(object, "stop_reason", json_string(moeflux_stop_name(t->stop)));
    }
    json_object_set_new(object, "tokens_before", json_integer(t->at));
    json_object_set_new(object, "tokens_asked", json_integer(t->asked));
    return object;
}

static json_t *conversation_json(const struct conversation *c, const char *model, uint64_t fingerprint)
{
    char hash[24];
    json_t *object = json_object(), *turns = json_array(), *tokens = json_array();
    snprintf(hash, sizeof hash, "%016" PRIx64, fingerprint);
    for (size_t i = 0; i < c->n_turns; i++)
        json_array_append_new(turns, turn_json(&c->turns[i]));
    for (size_t i = 0; i < c->tokens.n; i++)
        json_array_append_new(tokens, json_integer(c->tokens.ids[i]));
    json_object_set_new(object, "moeflux_session", json_integer(FORMAT));
    json_object_set_new(object, "model", utf8_json(model, strlen(model)));
    json_object_set_new(object, "fingerprint", json_string(hash));
    if (c->system.len)
        json_object_set_new(object, "system", text_json(&c->system));
    json_object_set_new(object, "turns", turns);
    json_object_set_new(object, "tokens", tokens);
    return object;
}

char *conversation_json_write(const struct conversation *c, const char *dir, uint64_t fingerprint)
{
    char *real = realpath(dir, NULL);
    json_t *object = conversation_json(c, real ? real : dir, fingerprint);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    free(real);
    return text;
}

/* ---- reading ---- */

static void get_text(struct json_view *v, const char *key, struct str *out)
{
    const char *text = json_view_text_or(v, key, "");
    if (v->rc)
        return;
    str_add_text(out, text);
    if (!str_ok(out))
        v->rc = err_set(v->e, ERR_MEMORY, "%s: out of memory", v->where);
}

static int get_stop(struct json_view *v, enum moeflux_stop *stop)
{
    const char *name = json_view_text_or(v, "stop_reason", "eos");
    for (int i = MOEFLUX_STOP_EOS; !v->rc && i <= MOEFLUX_STOP_CALLS; i++)
        if (strcmp(name, moeflux_stop_name((enum moeflux_stop)i)) == 0) {
            *stop = (enum moeflux_stop)i;
            return 0;
        }
    return v->rc ? v->rc : err_set(v->e, ERR_FORMAT, "%s: stop_reason: found \"%s\"", v->where, name);
}

/* Reads a turn. Positions ascend from turn to turn; only the last question may lack an answer. */
static int get_turn(struct conversation *c, const json_t *item, bool is_last, const char *path,
                    struct moeflux_err *e)
{
    struct json_view v = {.objects = {item}, .where = path, .e = e};
    uint32_t least = c->n_turns ? conversation_last(c)->asked : 0, all = (uint32_t)c->tokens.n;
    struct turn *t = conversation_add(c, e);
    if (!t)
        return ERR_MEMORY;
    if (!json_is_object(item))
        return err_set(e, ERR_FORMAT, "%s: turn %zu: expected an object", path, c->n_turns);
    t->answered = json_view_get(&v, "answer") != NULL;
    t->at = json_view_u32(&v, "tokens_before", least, all);
    /* Both are the same if a later rendering changed the question's tokens. */
    t->asked = v.rc ? 0 : json_view_u32(&v, "tokens_asked", t->at + !t->answered, all);
    get_text(&v, "question", &t->question);
    get_text(&v, "thinking", &t->thinking);
    get_text(&v, "answer", &t->answer);
    if (!v.rc)
        v.rc = get_stop(&v, &t->stop);
    if (!v.rc && !t->answered && (!is_last || t->asked != all))
        return err_set(e, ERR_FORMAT, "%s: question %zu has no answer", path, c->n_turns);
    return v.rc;
}

static int get_tokens(struct json_view *v, struct token_list *out)
{
    const json_t *list = json_view_array(v, "tokens");
    for (size_t i = 0; !v->rc && i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > INT32_MAX)
            return err_set(v->e, ERR_FORMAT, "%s: token %zu: expected a token id", v->where, i);
        v->rc = token_list_add(out, (int32_t)value, v->e);
    }
    return v->rc;
}

static int get_all(struct json_view *v, struct conversation *c, struct conversation_model *m)
{
    json_view_u32(v, "moeflux_session", FORMAT, FORMAT);
    const char *hash = json_view_text_or(v, "fingerprint", "");
    char *end = NULL;
    if (v->rc)
        return v->rc;
    m->fingerprint = strtoull(hash, &end, 16);
    if (strlen(hash) != 16 || *end)
        return err_set(v->e, ERR_FORMAT, "%s: fingerprint: expected 16 digits, found \"%.40s\"", v->where,
                       hash);
    const char *model = json_view_text_or(v, "model", "");
    if (!v->rc && !(m->dir = mem_text(model, v->e)))
        return ERR_MEMORY;
    get_text(v, "system", &c->system);
    int rc = v->rc ? v->rc : get_tokens(v, &c->tokens);
    const json_t *turns = rc ? NULL : json_view_array(v, "turns");
    size_t n = json_array_size(turns);
    for (size_t i = 0; !rc && !v->rc && i < n; i++)
        rc = get_turn(c, json_array_get(turns, i), i + 1 == n, v->where, v->e);
    if (!rc && !v->rc && n == 0 && c->tokens.n)
        rc = err_set(v->e, ERR_FORMAT, "%s: tokens, but no questions", v->where);
    return rc ? rc : v->rc;
}

int conversation_json_read(struct conversation *c, struct conversation_model *m, const char *text, size_t len,
                           const char *name, struct moeflux_err *e)
{
    json_t *root = NULL;
    int rc = json_read(text, len, name, JSON_MAX_LARGE, &root, e);
    struct json_view v = {.objects = {root}, .where = name, .e = e};
    if (!rc)
        rc = get_all(&v, c, m);
    json_decref(root);
    return rc;
}
