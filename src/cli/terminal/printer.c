#include "cli/terminal/printer.h"

#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/terminal/term.h"
#include "generate/answer_json.h"

void printer_init(struct printer *p, struct output *out, const struct options *o, const struct term *t)
{
    *p = (struct printer){.out = out, .ids = o->tokens_out};
    /* Text for a program must be what the model wrote, with no character less and no line end more. */
    bool is_prose = !o->raw && !o->json_schema && !o->json_object && !o->grammar;
    p->colors = t->out_dress && is_prose;
    p->wraps = t->out && o->color != 2 && is_prose;
    p->markdown.plain = !p->colors;
    p->wrap.out = out;
    if (t->out && t->out_dress)
        p->thinking = PRINTER_DIM;
    else if (t->out || o->show_think)
        p->thinking = PRINTER_PLAIN;
}

static void put(struct printer *p, const char *text, size_t n)
{
    if (n == 0)
        return;
    p->wrap.width = p->wraps ? term_out_width() : 0;
    if (p->colors || p->wraps)
        markdown_push(&p->markdown, text, n, &p->wrap);
    else
        wrap_text(&p->wrap, text, n);
    p->any = true;
}

static void end_line(struct printer *p)
{
    markdown_end(&p->markdown, &p->wrap);
    if (p->wrap.line_open)
        wrap_text(&p->wrap, "\n", 1);
    wrap_end(&p->wrap);
}

static void leave_thinking(struct printer *p)
{
    if (!p->in_thinking)
        return;
    end_line(p);
    if (p->thinking == PRINTER_DIM)
        output_escape(p->out, term_plain);
    else
        output_text(p->out, "</think>\n");
    output_text(p->out, "\n");
    p->in_thinking = false;
    p->markdown.plain = !p->colors;
}

static void enter_thinking(struct printer *p)
{
    if (p->in_thinking)
        return;
    end_line(p);
    if (p->thinking == PRINTER_DIM)
        output_escape(p->out, term_dim);
    else
        output_text(p->out, "<think>\n");
    p->in_thinking = p->markdown.plain = true;
}

static void put_text(struct printer *p, enum chat_part part, const char *text, size_t len)
{
    if (len == 0 || (part == CHAT_THINKING && p->thinking == PRINTER_HIDDEN))
        return;
    if (part == CHAT_THINKING)
        enter_thinking(p);
    else
        leave_thinking(p);
    put(p, text, len);
}

/* Prints a line of JSON for each tool call when it is complete. */
static int put_call(struct printer *p, const struct answer_piece *piece, struct moeflux_err *e)
{
    if (piece->event != ANSWER_CALL_ENDS)
        return 0;
    leave_thinking(p);
    end_line(p);
    p->any = true;
    return output_json(p->out, answer_json_call(piece->call), e);
}

static int on_piece(void *ctx, const struct answer_piece *piece, struct moeflux_err *e)
{
    struct printer *p = ctx;
    if (!p->ids && piece->part == CHAT_TOOL)
        return put_call(p, piece, e);
    if (!p->ids) {
        put_text(p, piece->part, piece->text, piece->len);
    } else if (piece->id >= 0) {
        output_addf(p->out, "%s%d", p->any ? " " : "", piece->id);
        p->any = p->wrap.line_open = true;
    }
    return output_flush(p->out, e);
}

struct answer_sink printer_sink(struct printer *p)
{
    return (struct answer_sink){.piece = on_piece, .ctx = p};
}

int printer_end(struct printer *p, struct moeflux_err *e)
{
    leave_thinking(p);
    end_line(p);
    return output_flush(p->out, e);
}
