#include "api/items.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "moeflux_chat.h"

void items_end(struct items *l, const struct item_sink *sink)
{
    str_clear(&l->blank);
    if (!l->is_open)
        return;
    l->is_open = false;
    if (sink)
        sink->ends(sink->ctx, l->n - 1);
}

/* Begins an item; NULL: no memory. */
static struct item *begin(struct items *l, enum item_kind kind)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct item *list = realloc(l->list, cap * sizeof *list);
        l->failed |= !list;
        if (!list)
            return NULL;
        l->list = list;
        l->cap = cap;
    }
    l->list[l->n] = (struct item){.kind = kind};
    l->is_open = true;
    return &l->list[l->n++];
}

static void grow(struct items *l, const char *text, size_t len, const struct item_sink *sink)
{
    struct item *last = &l->list[l->n - 1];
    str_add(&last->text, text, len);
    l->failed |= !str_ok(&last->text);
    if (sink && len)
        sink->grows(sink->ctx, l->n - 1, text, len);
}

static bool is_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && strchr(" \t\r\n", text[n]) && text[n])
        n++;
    return n == len;
}

/* Takes text or thinking. Clients refuse texts of white space alone, which models write before a call. */
static void take_text(struct items *l, enum item_kind kind, const char *text, size_t len,
                      const struct item_sink *sink)
{
    bool continues = l->is_open && l->list[l->n - 1].kind == kind;
    if (!continues && l->is_open)
        items_end(l, sink);
    if (!continues && is_blank(text, len)) {
        if (l->blank_kind != kind)
            str_clear(&l->blank);
        l->blank_kind = kind;
        str_add(&l->blank, text, len);
        return;
    }
    if (!continues) {
        if (!begin(l, kind))
            return;
        if (sink)
            sink->begins(sink->ctx, l->n - 1);
        if (l->blank.len && l->blank_kind == kind)
            grow(l, l->blank.data, l->blank.len, sink);
        str_clear(&l->blank);
    }
    grow(l, text, len, sink);
}

static void take_call(struct items *l, const struct moeflux_piece *p, const struct item_sink *sink)
{
    struct item *call;
    switch (p->kind) {
    case MOEFLUX_PIECE_CALL_BEGINS:
        items_end(l, sink);
        if (!(call = begin(l, ITEM_CALL)))
            return;
        str_add_text(&call->call_id, p->call->id);
        str_add_text(&call->name, p->call->name);
        l->failed |= !str_ok(&call->call_id) || !str_ok(&call->name);
        if (sink)
            sink->begins(sink->ctx, l->n - 1);
        break;
    case MOEFLUX_PIECE_CALL_ARGUMENTS:
        if (l->is_open)
            grow(l, p->text, p->len, sink);
        break;
    case MOEFLUX_PIECE_CALL_FAILS:
        if (l->is_open)
            l->list[l->n - 1].failed = true;
        items_end(l, sink);
        break;
    default:
        items_end(l, sink);
        break;
    }
}

void items_take(struct items *l, const struct moeflux_piece *p, const struct item_sink *sink)
{
    l->n_thinking += p->id >= 0 && p->kind == MOEFLUX_PIECE_THINKING;
    if (p->call)
        take_call(l, p, sink);
    else if (p->len)
        take_text(l, p->kind == MOEFLUX_PIECE_THINKING ? ITEM_THINKING : ITEM_TEXT, p->text, p->len, sink);
}

void items_free(struct items *l)
{
    for (size_t i = 0; i < l->n; i++) {
        str_free(&l->list[i].text);
        str_free(&l->list[i].name);
        str_free(&l->list[i].call_id);
    }
    free(l->list);
    str_free(&l->blank);
    *l = (struct items){0};
}
