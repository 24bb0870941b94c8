/* nfc.h - Unicode normalisation form C. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_NFC_H
#define MOEFLUX_TEXT_TOKENIZER_NFC_H

#include <stddef.h>

struct moeflux_err;
struct str;

/* Appends the NFC form of `text` (valid UTF-8) to `out`. Takes linear time, even for long runs of combining
 * marks. ERR_MEMORY. */
int nfc_add(const char *text, size_t len, struct str *out, struct moeflux_err *e);

#endif
