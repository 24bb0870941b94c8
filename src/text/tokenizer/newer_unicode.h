/* newer_unicode.h - characters that Hugging Face's tokenizers know and an older PCRE2 does not. A part of the
 * tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_NEWER_UNICODE_H
#define MOEFLUX_TEXT_TOKENIZER_NEWER_UNICODE_H

#include <stddef.h>

struct str;

/* Appends, as members of a PCRE2 set, the characters of a general category ("L", "Lu") or of the script
 * "Han" that Unicode 15 and 16 added. Appends nothing for another name. */
void newer_unicode_add(const char *name, size_t len, struct str *out);

#endif
