#include "generate/channels.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/generator.h"
#include "sample/bits.h"
#include "text/grammar/constraint.h"
#include "text/chat/harmony.h"
#include "text/chat/sections.h"
#include "text/chat/tool_calls.h"

/* The header of a message, with the tokens that end the previous message. */
struct channel_head {
    struct token_list ids;
    size_t n_before; /* leading ids that end the previous message; the first message skips them */
    /* what the constraint has in front of the text: the tool that it calls; "": no call; NULL: nothing */
    const char *tool;
    bool is_thinking;
    bool fits; /* the tokens so far are its beginning */
};

static const char BEFORE[] = "<|end|><|start|>assistant";

static int encode(const struct generator *s, const char *text, size_t len, struct token_list *out,
                  struct moeflux_err *e)
{
    return tokenizer_encode(s->tokenizer, text, len, SPECIALS_AS_TOKENS, out, NULL, e);
}

static int add_head(struct channels *c, const char *tool, bool is_thinking, struct moeflux_err *e)
{
    struct channel_head *h = &c->heads[c->n++];
    struct str text = {0};
    *h = (struct channel_head){.tool = tool, .is_thinking = is_thinking};
    int rc = encode(c->generator, BEFORE, sizeof BEFORE - 1, &h->ids, e);
    h->n_before = h->ids.n;
    if (rc)
        return rc;
    if (tool && *tool)
        str_addf(&text, HARMONY_CALL "functions.%s %sjson", tool,
                 tokenizer_added_id(c->generator->tokenizer, HARMONY_FORM) < 0 ? "" : HARMONY_FORM);
    else
        str_addf(&text, HARMONY_CHANNEL "%s", is_thinking ? "analysis" : "final");
    str_add_text(&text, HARMONY_MESSAGE);
    rc = str_ok(&text) ? encode(c->generator, text.data, text.len, &h->ids, e)
                       : err_set(e, ERR_MEMORY, "out of memory for the answer");
    str_free(&text);
    return rc;
}

/* Advances a constraint by the function's name, which comes before the arguments; "": a text follows. */
static int choose_tool(struct constraint *c, const char *tool, struct moeflux_err *e)
{
    int rc = constraint_accept_bytes(c, tool, strlen(tool), e);
    return rc ? rc : constraint_accept_bytes(c, TOOL_NAME_END, sizeof TOOL_NAME_END - 1, e);
}

/* Adds headers of calls, for the tools that the constraint allows. */
static int add_tools(struct channels *c, const json_t *tools, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(tools); i++) {
        const json_t *function = json_member(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_member(function, "name"));
        struct constraint *trial = constraint_clone(c->constraint, e);
        struct moeflux_err why;
        if (!trial)
            return ERR_MEMORY;
        rc = choose_tool(trial, name, &why);
        constraint_free(trial);
        if (rc == ERR_USAGE) /* the constraint does not allow this tool */
            rc = 0;
        else
            rc = rc ? err_set(e, rc, "%s", why.text) : add_head(c, name, false, e);
    }
    return rc;
}

/* Begins a header of which n_done tokens are written. */
static void begin_header(struct channels *c, size_t n_done)
{
    c->at = CHANNELS_HEADER;
    c->n_done = n_done;
    for (size_t i = 0; i < c->n; i++)
        c->heads[i].fits = !c->heads[i].is_thinking || !c->has_thought;
}

/* Finds where the prompt has left the answer. */
static void begin(struct channels *c, const struct answer_options *o, const struct chat_filter *f)
{
    c->has_thought = !f->in_header;
    if (f->in_header)
        begin_header(c, c->heads[0].n_before);
    else if (f->message == CHAT_THINKING)
        c->at = CHANNELS_THINKING;
    else if (o->must_call)
        begin_header(c, 0); /* what the prompt has begun ends, and the call follows */
    else
        c->at = CHANNELS_TEXT;
}

/* Begins an answer in sections: after the thinking the only header is that of the answer's text; calls follow
 * the text, which is then empty. */
static int open_sections(struct channels *c, const struct answer_options *o, const struct chat_filter *f,
                         struct moeflux_err *e)
{
    static const char head[] = SECTIONS_ANSWER SECTIONS_EMPTY;
    bool thinks = f->message == CHAT_THINKING;
    size_t n_open = sizeof SECTIONS_ANSWER - 1, n = o->must_call ? sizeof head - 1 : n_open;
    struct channel_head *h = &c->heads[c->n++];
    int rc = encode(c->generator, head, n_open, &h->ids, e);
    h->n_before = h->ids.n; /* the prompt ends with these */
    if (rc == 0 && n > n_open)
        rc = encode(c->generator, head + n_open, n - n_open, &h->ids, e);
    if (thinks)
        c->at = CHANNELS_THINKING;
    else if (o->must_call && !o->continues)
        begin_header(c, h->n_before);
    else
        c->at = CHANNELS_TEXT;
    return rc;
}

int channels_open(struct channels *c, const struct generator *s, const struct answer_options *o,
                  const struct chat_filter *f, struct moeflux_err *e)
{
    *c = (struct channels){.constraint = o->constraint};
    if (!o->constraint || !o->chat || !(s->chat.harmony.is_used || s->chat.sections.is_used))
        return 0;
    c->generator = s;
    c->heads = mem_new(3 + json_array_size(o->tools), sizeof *c->heads, e);
    c->bits = mem_new(div_up(s->info.vocab_size, 64), sizeof *c->bits, e);
    if (!c->heads || !c->bits)
        return ERR_MEMORY;
    if (s->chat.sections.is_used)
        return open_sections(c, o, f, e);
    int rc = add_head(c, NULL, true, e);
    if (rc == 0)
        rc = o->must_call || o->may_call ? add_tools(c, o->tools, e) : 0;
    if (rc == 0 && !o->must_call)
        rc = add_head(c, o->may_call ? "" : NULL, false, e);
    if (rc == 0)
        begin(c, o, f);
    return rc == 0 && c->at == CHANNELS_TEXT && o->may_call ? choose_tool(c->constraint, "", e) : rc;
}

void channels_free(struct channels *c)
{
    for (size_t i = 0; i < c->n; i++)
        token_list_free(&c->heads[i].ids);
    free(c->heads);
    free(c->bits);
    *c = (struct channels){0};
}

int channels_mask(struct channels *c, const uint64_t **bits, struct moeflux_err *e)
{
    *bits = NULL;
    if (c->at == CHANNELS_TEXT)
        return constraint_mask(c->constraint, bits, e);
    if (c->at == CHANNELS_THINKING)
        return 0;
    memset(c->bits, 0, div_up(c->generator->info.vocab_size, WORD_BITS) * sizeof *c->bits);
    for (size_t i = 0; i < c->n; i++) {
        if (!c->heads[i].fits)
            continue;
        uint32_t id = (uint32_t)c->heads[i].ids.ids[c->n_done];
        bits_set(c->bits, id);
    }
    *bits = c->bits;
    return 0;
}

static int accept_header(struct channels *c, int32_t id, struct moeflux_err *e)
{
    const struct channel_head *whole = NULL;
    bool any = false;
    for (size_t i = 0; i < c->n; i++) {
        struct channel_head *h = &c->heads[i];
        h->fits = h->fits && h->ids.ids[c->n_done] == id;
        any = any || h->fits;
        whole = h->fits && h->ids.n == c->n_done + 1 ? h : whole;
    }
    c->n_done++;
    if (!any)
        return err_set(e, ERR_USAGE, "token %d fits no header that the answer may have", id);
    if (!whole)
        return 0;
    c->at = whole->is_thinking ? CHANNELS_THINKING : CHANNELS_TEXT;
    c->has_thought = c->has_thought || whole->is_thinking;
    return whole->tool ? choose_tool(c->constraint, whole->tool, e) : 0;
}

int channels_accept(struct channels *c, int32_t id, struct moeflux_err *e)
{
    const struct harmony *h = &c->generator->chat.harmony;
    if (c->at == CHANNELS_HEADER)
        return accept_header(c, id, e);
    if (c->at == CHANNELS_TEXT)
        return constraint_accept(c->constraint, id, e);
    if (c->generator->chat.sections.is_used) {
        const struct sections *s = &c->generator->chat.sections;
        if (id == s->sep && c->closes)
            begin_header(c, 0);
        c->closes = id == s->close || (c->closes && !tokenizer_is_special(c->generator->tokenizer, id));
        return 0;
    }
    /* A message may begin without the first token of BEFORE. */
    if (id == h->end || id == h->start)
        begin_header(c, id == h->end ? 1 : 2);
    return 0;
}
