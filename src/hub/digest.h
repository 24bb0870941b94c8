/* digest.h - SHA-1 and SHA-256 of a stream: the names of blobs in a cache of Hugging Face's tools. */
#ifndef MOEFLUX_HUB_DIGEST_H
#define MOEFLUX_HUB_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum digest_kind {
    DIGEST_GIT,    /* git's name of a blob: SHA-1 of "blob SIZE", a NUL and the bytes */
    DIGEST_SHA256, /* the plain sum */
};

enum { DIGEST_BLOCK = 64, DIGEST_TEXT = 65 };

struct digest {
    enum digest_kind kind;
    bool is_fast; /* the processor's instructions are used */
    uint32_t state[8];
    uint64_t n_bytes; /* added so far */
    uint8_t rest[DIGEST_BLOCK];
};

/* Begins a digest. n_bytes: size of the whole stream, which git's name covers. */
void digest_begin(struct digest *d, enum digest_kind kind, uint64_t n_bytes);
void digest_add(struct digest *d, const void *bytes, size_t n);
/* Writes the digest in hexadecimal, 40 or 64 characters and a NUL. */
void digest_end(struct digest *d, char text[DIGEST_TEXT]);

/* Returns the characters of a digest. */
size_t digest_text_length(enum digest_kind kind);

/* Adds n blocks of 64 bytes to a state of SHA-256. The second uses instructions of x86 that
 * digest_x86_works says are there. */
void digest_sha256_plain(uint32_t state[8], const uint8_t *bytes, size_t n);
void digest_x86_sha256(uint32_t state[8], const uint8_t *bytes, size_t n);
bool digest_x86_works(void);

#endif
