#include "cli/options/escapes.h"

#include <stddef.h>
#include <string.h>

#include "base/str.h"

static const char letters[] = "nrt'\"\\", characters[] = "\n\r\t'\"\\";

/* Returns the value of a hexadecimal digit, or -1. */
static int digit_of(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

/* Returns the character that the sequence after a backslash stands for; 0: it is none. *n: its characters. */
static char character_of(const char *text, size_t *n)
{
    const char *at = *text ? strchr(letters, *text) : NULL;
    *n = 1;
    if (at)
        return characters[at - letters];
    if (*text != 'x' || digit_of(text[1]) < 0 || digit_of(text[2]) < 0)
        return '\0';
    *n = 3;
    return (char)(16 * digit_of(text[1]) + digit_of(text[2]));
}

void escapes_replace(char *text)
{
    char *to = text;
    while (*text) {
        size_t n = 0;
        char c = '\0';
        if (*text == '\\')
            c = character_of(text + 1, &n);
        *to++ = *text;
        if (c)
            to[-1] = c;
        text += c ? n + 1 : 1;
    }
    *to = '\0';
}

void escapes_add(struct str *out, const char *text)
{
    for (; *text; text++) {
        const char *at = *text == '\'' ? NULL : strchr(characters, *text);
        if (at)
            str_addf(out, "\\%c", letters[at - characters]);
        else
            str_add(out, text, 1);
    }
}
