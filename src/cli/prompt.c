#include "cli/prompt.h"

#include <ctype.h>
#include <string.h>

#include "base/err.h"
#include "cli/input.h"
#include "cli/number.h"
#include "cli/options.h"
#include "cli/terminal/term.h"

/* A prompt is text for one context: past this size the file is a mistake. */
#define MAX_PROMPT_BYTES ((size_t)1 << 30)

bool prompt_is_given(const struct options *o, const struct term *t)
{
    return o->prompt || o->file || o->tokens_in || !t->in;
}

/* Files may be pipes (process substitution), so this reads to the end instead of asking for a size. */
static int read_file(const char *path, struct str *out, struct moeflux_err *e)
{
    struct input in;
    int rc = input_open(&in, path, e);
    if (rc)
        return rc;
    while ((rc = input_read(&in, true, out, e)) == INPUT_BYTES)
        if (out->len > MAX_PROMPT_BYTES) {
            rc = err_set(e, ERR_USAGE, "%s: the prompt is over %zu bytes", in.name, MAX_PROMPT_BYTES);
            break;
        }
    input_close(&in);
    return rc;
}

static int parse_ids(const char *name, const struct str *text, struct token_list *ids, struct moeflux_err *e)
{
    const char *at = str_text(text), *end = at + text->len;
    while (at < end) {
        char word[16];
        int64_t id;
        size_t n = 0;
        while (at < end && isspace((unsigned char)*at))
            at++;
        while (at + n < end && !isspace((unsigned char)at[n]))
            n++;
        if (n == 0)
            break;
        size_t kept = n < sizeof word ? n : sizeof word - 1;
        memcpy(word, at, kept);
        word[kept] = '\0';
        if (memchr(word, '\0', kept))
            return err_set(e, ERR_USAGE, "%s: word %zu: expected a token id, found a NUL byte", name,
                           ids->n + 1);
        if (n >= sizeof word || !number_int(word, 0, INT32_MAX, &id))
            return err_set(e, ERR_USAGE, "%s: word %zu: expected a token id, found \"%s\"", name, ids->n + 1,
                           word);
        int rc = token_list_add(ids, (int32_t)id, e);
        if (rc)
            return rc;
        at += n;
    }
    return ids->n ? 0 : err_set(e, ERR_USAGE, "%s: no token ids in it", name);
}

/* The chat template trims its messages, so blanks alone are no question; --raw takes them. */
static bool is_blank(const struct str *text)
{
    const char *at = str_text(text);
    return strspn(at, " \t\r\n") == text->len;
}

int prompt_read(struct prompt *p, const struct options *o, struct moeflux_err *e)
{
    int rc = 0;
    const char *path = o->tokens_in ? o->tokens_in : o->file;
    const char *name = o->prompt ? "-p" : path && strcmp(path, "-") != 0 ? path : "stdin";
    *p = (struct prompt){.is_ids = o->tokens_in != NULL};
    if (o->prompt)
        str_add_text(&p->text, o->prompt);
    else
        rc = read_file(path, &p->text, e);
    if (!rc && !str_ok(&p->text))
        rc = err_set(e, ERR_MEMORY, "out of memory for the prompt");
    if (!rc && p->is_ids)
        rc = parse_ids(name, &p->text, &p->ids, e);
    if (!rc && (o->raw ? p->text.len == 0 : is_blank(&p->text)))
        rc = err_set(e, ERR_USAGE, "%s: the prompt is empty", name);
    if (rc)
        prompt_free(p);
    return rc;
}

void prompt_free(struct prompt *p)
{
    str_free(&p->text);
    token_list_free(&p->ids);
}
