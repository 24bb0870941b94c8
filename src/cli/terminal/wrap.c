#include "cli/terminal/wrap.h"

#include "cli/output.h"

struct range {
    uint32_t first, last;
};

/* Marks that are drawn over the character before them, and joiners. */
static const struct range zero[] = {{0x300, 0x36F},   {0x483, 0x489},     {0x591, 0x5BD},    {0x610, 0x61A},
                                    {0x64B, 0x65F},   {0x6D6, 0x6DC},     {0x900, 0x902},    {0xE31, 0xE31},
                                    {0xE34, 0xE3A},   {0xE47, 0xE4E},     {0x1AB0, 0x1AFF},  {0x1DC0, 0x1DFF},
                                    {0x200B, 0x200F}, {0x20D0, 0x20FF},   {0xFE00, 0xFE0F},  {0xFE20, 0xFE2F},
                                    {0xFEFF, 0xFEFF}, {0x1F3FB, 0x1F3FF}, {0xE0100, 0xE01EF}};
/* East Asian wide characters and emoji. */
static const struct range wide[] = {
    {0x1100, 0x115F}, {0x2E80, 0x303E},   {0x3041, 0x33FF},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},
    {0xA000, 0xA4CF}, {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
    {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

static bool has(const struct range *ranges, size_t n, uint32_t code)
{
    size_t i = 0;
    while (i < n && code > ranges[i].last)
        i++;
    return i < n && code >= ranges[i].first;
}

uint32_t wrap_columns(uint32_t code)
{
    if (code < 0x300)
        return 1;
    if (has(zero, sizeof zero / sizeof *zero, code))
        return 0;
    return has(wide, sizeof wide / sizeof *wide, code) ? 2 : 1;
}

/* Returns the bytes of the character that begins with this one. */
static uint32_t bytes_of(unsigned char first)
{
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

static uint32_t code_of(const char *bytes, uint32_t n)
{
    uint32_t code = n == 1 ? (unsigned char)bytes[0] : (unsigned char)bytes[0] & (0x7Fu >> n);
    for (uint32_t i = 1; i < n; i++)
        code = code << 6 | ((unsigned char)bytes[i] & 0x3Fu);
    return code;
}

uint32_t wrap_text_columns(const char *text, size_t n)
{
    uint32_t columns = 0;
    for (size_t at = 0; at < n;) {
        uint32_t len = bytes_of((unsigned char)text[at]);
        len = len <= n - at ? len : 1;
        columns += wrap_columns(code_of(text + at, len));
        at += len;
    }
    return columns;
}

static void put_word(struct wrap *w)
{
    size_t at = 0;
    for (uint32_t i = 0; i <= w->n_escapes; i++) {
        size_t to = i < w->n_escapes ? w->escapes[i].at : w->word.len;
        output_add(w->out, str_text(&w->word) + at, to - at);
        at = to;
        if (i < w->n_escapes)
            output_escape(w->out, w->escapes[i].code);
    }
    w->column += w->word_columns;
    if (w->width)
        w->column = w->column > w->width ? w->column % w->width : w->column;
    w->word_columns = w->n_escapes = 0;
    str_clear(&w->word);
}

static void put_blanks(struct wrap *w)
{
    for (; w->n_blanks > 0; w->n_blanks--, w->column++)
        output_add(w->out, " ", 1);
}

/* Prints the word that is held back, in a new line if it does not fit into this one. */
static void end_word(struct wrap *w)
{
    if (!w->word.len)
        return;
    if (w->column > 0 && w->n_blanks > 0 && w->column + w->n_blanks + w->word_columns > w->width) {
        output_add(w->out, "\n", 1);
        w->column = w->n_blanks = 0;
    }
    put_blanks(w);
    put_word(w);
}

/* A wide character is a word of its own: lines may break before and after it. */
static void put_wide(struct wrap *w, const char *bytes, uint32_t n)
{
    end_word(w);
    if (w->column + w->n_blanks + 2 > w->width && w->column > 0) {
        output_add(w->out, "\n", 1);
        w->column = w->n_blanks = 0;
    }
    put_blanks(w);
    output_add(w->out, bytes, n);
    w->column += 2;
}

static void put_char(struct wrap *w, const char *bytes, uint32_t n)
{
    uint32_t code = code_of(bytes, n), columns = wrap_columns(code);
    bool plain = w->width == 0 || w->verbatim;
    w->line_open = code != '\n';
    if (plain || code == '\n' || code == '\t') {
        end_word(w);
        put_blanks(w);
        output_add(w->out, bytes, n);
        w->column = code == '\n' ? 0 : code == '\t' ? (w->column / 8 + 1) * 8 : w->column + columns;
    } else if (code == ' ' && !w->joined) {
        end_word(w);
        w->n_blanks++;
    } else if (columns == 2 && !w->joined) {
        put_wide(w, bytes, n);
    } else {
        str_add(&w->word, bytes, n);
        w->word_columns += columns;
    }
}

void wrap_text(struct wrap *w, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool continues = ((unsigned char)text[i] & 0xC0) == 0x80;
        if (w->n_part && !continues) {
            put_char(w, w->part, 1);
            w->n_part = 0;
        }
        if (!w->n_part)
            w->part_bytes = continues ? 1 : bytes_of((unsigned char)text[i]);
        w->part[w->n_part++] = text[i];
        if (w->n_part < w->part_bytes)
            continue;
        put_char(w, w->part, w->n_part);
        w->n_part = 0;
    }
}

void wrap_escape(struct wrap *w, const char *code)
{
    if (w->n_escapes == WRAP_MAX_ESCAPES)
        end_word(w);
    if (!w->word.len) {
        output_escape(w->out, code);
        return;
    }
    w->escapes[w->n_escapes].at = w->word.len;
    w->escapes[w->n_escapes++].code = code;
}

void wrap_end(struct wrap *w)
{
    end_word(w);
    put_blanks(w);
    str_free(&w->word);
}
