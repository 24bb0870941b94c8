#include "cli/chat_template.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "cli/options/options.h"
#include "generate/generator.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_BYTES ((size_t)1 << 20)

/* A text with a tag of Jinja is a template: no file's name has one. */
static int read_text(struct chat_template *c, const char *file, struct moeflux_err *e)
{
    struct moeflux_err why;
    size_t len;
    if (strstr(file, "{{") || strstr(file, "{%"))
        return (c->text = mem_text(file, e)) ? 0 : ERR_MEMORY;
    int rc = file_read_text(file, MAX_BYTES, &c->text, &len, &why);
    return rc ? err_set(e, rc == ERR_MEMORY ? rc : ERR_USAGE, "--chat-template: %s", why.text) : 0;
}

static int read_variables(struct chat_template *c, const char *text, struct moeflux_err *e)
{
    json_error_t why;
    c->variables = json_sent_read(text, strlen(text), &why);
    if (!c->variables)
        return err_set(e, ERR_USAGE, "--chat-template-kwargs: byte %d: %s", why.position, why.text);
    return json_is_object(c->variables)
               ? 0
               : err_set(e, ERR_USAGE, "--chat-template-kwargs: expected a JSON object, found \"%.40s\"",
                         text);
}

int chat_template_read(struct chat_template *c, const struct options *o, struct moeflux_err *e)
{
    *c = (struct chat_template){0};
    int rc = o->chat_template ? read_text(c, o->chat_template, e) : 0;
    return rc || !o->chat_template_kwargs ? rc : read_variables(c, o->chat_template_kwargs, e);
}

void chat_template_free(struct chat_template *c)
{
    free(c->text);
    json_decref(c->variables);
    *c = (struct chat_template){0};
}

int chat_template_use(struct chat_template *c, struct generator *s, struct moeflux_err *e)
{
    if (!c->text && !c->variables)
        return 0;
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --chat-template needs", s->dir);
    tokenizer_set_template(s->tokenizer, c->text, c->variables);
    *c = (struct chat_template){0};
    return 0;
}
