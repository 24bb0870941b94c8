#include "base/quote.h"

#include <stdio.h>
#include <string.h>

/* Most bytes of one escaped byte, the dots, the closing quote and the NUL. */
#define TAIL_BYTES 9

struct quote quote_bytes(const char *text, size_t len)
{
    struct quote q;
    size_t n = 0;
    q.text[n++] = '"';
    size_t i = 0;
    for (; i < len && n + TAIL_BYTES < sizeof q.text; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7f)
            q.text[n++] = (char)c;
        else
            n += (size_t)snprintf(q.text + n, sizeof q.text - n, "\\x%02x", c);
    }
    snprintf(q.text + n, sizeof q.text - n, "%s\"", i < len ? "..." : "");
    return q;
}
