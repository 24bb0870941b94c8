#include "cli/terminal/printer.h"

#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/terminal/term.h"
#include "cli/report/answer_fields.h"

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

static void put_text(struct printer *p, const struct moeflux_piece *piece)
{
    bool is_thinking = piece->kind == MOEFLUX_PIECE_THINKING;
    if (piece->len == 0 || (is_thinking && p->thinking == PRINTER_HIDDEN))
        return;
    if (is_thinking)
        enter_thinking(p);
    else
        leave_thinking(p);
    put(p, piece->text, piece->len);
}

/* Prints a complete tool call as a line of JSON. */
static void put_call(struct printer *p, const struct moeflux_call *call)
{
    struct moeflux_err ignored; /* the fault of the output stays */
    leave_thinking(p);
    end_line(p);
    p->any = true;
    output_json(p->out, answer_fields_call(call), &ignored);
}

bool printer_piece(void *ctx, const struct moeflux_piece *piece)
{
    struct printer *p = ctx;
    if (!p->ids && piece->kind == MOEFLUX_PIECE_CALL_ENDS) {
        put_call(p, piece->call);
    } else if (!p->ids && !piece->call) {
        put_text(p, piece);
    } else if (p->ids && piece->id >= 0) {
        output_addf(p->out, "%s%d", p->any ? " " : "", piece->id);
        p->any = p->wrap.line_open = true;
    }
    return output_flush(p->out, NULL) == 0;
}

int printer_end(struct printer *p, struct moeflux_err *e)
{
    leave_thinking(p);
    end_line(p);
    return output_flush(p->out, e);
}
