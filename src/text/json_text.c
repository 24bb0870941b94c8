#include "text/json_text.h"

#include <jansson.h>

#include "base/str.h"
#include "text/utf8.h"

struct json_t *json_text_new(const char *bytes, size_t n)
{
    struct str clean = {0};
    utf8_clean(bytes, n, &clean);
    json_t *text = str_ok(&clean) ? json_stringn(str_text(&clean), clean.len) : NULL;
    str_free(&clean);
    return text;
}
