#include "cli/chat_template.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "cli/options/options.h"
#include "moeflux_chat.h"

#define MAX_BYTES ((size_t)1 << 20)

/* A text with a tag of Jinja is a template: no file's name has one. */
static bool is_text(const char *file)
{
    return strstr(file, "{{") || strstr(file, "{%");
}

/* Users of llama.cpp name one of its templates. */
static const char *hint_for(const char *file)
{
    bool is_name = !strpbrk(file, "/.") && !file_exists(file);
    return is_name
               ? " (no template is built in: leave the flag out for the model's own, or name a Jinja file)"
               : "";
}

static int read_file(struct chat_template *c, const char *file, struct moeflux_err *e)
{
    struct moeflux_err why;
    size_t len;
    int rc = file_read_text(file, MAX_BYTES, &c->text, &len, &why);
    const char *hint = rc ? hint_for(file) : "";
    return rc ? err_set(e, *hint ? ERR_USAGE : rc, "--chat-template: %s%s", why.text, hint) : 0;
}

/* Names the user's template in a message about "chat template". */
static int name_template(const struct chat_template *c, int rc, const struct moeflux_err *why,
                         struct moeflux_err *e)
{
    static const char subject[] = "chat template";
    bool has_subject = strncmp(why->text, subject, sizeof subject - 1) == 0;
    return err_set(e, rc, "--chat-template%s%.200s%s%s", c->file ? " " : "", c->file ? c->file : "",
                   has_subject ? "" : ": ", why->text + (has_subject ? sizeof subject - 1 : 0));
}

/* Parses it, so that a fault is reported before a model is opened. */
static int read_text(struct chat_template *c, const char *file, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    c->file = is_text(file) ? NULL : file;
    int rc = c->file ? read_file(c, file, e) : (c->text = mem_text(file, e)) ? 0 : ERR_MEMORY;
    if (rc)
        return rc;
    rc = moeflux_template_check(c->text, &why);
    return rc ? name_template(c, rc, &why, e) : 0;
}

static int check_variables(const char *text, struct moeflux_err *e)
{
    json_error_t why;
    json_t *read = json_sent_read(text, strlen(text), &why);
    bool is_object = json_is_object(read);
    json_decref(read);
    if (!read)
        return err_set(e, ERR_USAGE, "--chat-template-kwargs: byte %d: %s", why.position, why.text);
    return is_object ? 0
                     : err_set(e, ERR_USAGE,
                               "--chat-template-kwargs: expected a JSON object, found \"%.40s\"", text);
}

int chat_template_read(struct chat_template *c, const struct options *o, struct moeflux_err *e)
{
    *c = (struct chat_template){0};
    int rc = o->chat_template ? read_text(c, o->chat_template, e) : 0;
    c->variables = o->chat_template_kwargs;
    return rc || !c->variables ? rc : check_variables(c->variables, e);
}

void chat_template_free(struct chat_template *c)
{
    free(c->text);
    *c = (struct chat_template){0};
}

int chat_template_use(const struct chat_template *c, struct moeflux_chat *chat, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    if (!c->text && !c->variables)
        return 0;
    int rc = moeflux_chat_use_template(chat, c->text, c->variables, &why);
    return rc ? name_template(c, rc, &why, e) : 0;
}
