/* digest.h - SHA-1 and SHA-256 of a stream: the names of blobs in a cache of Hugging Face's tools. */
#ifndef MOEFLUX_HUB_DIGEST_H
#define MOEFLUX_HUB_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include <nettle/sha1.h>
#include <nettle/sha2.h>

enum digest_kind {
    DIGEST_GIT,    /* git's name of a blob: SHA-1 of "blob SIZE", a NUL and the bytes */
    DIGEST_SHA256, /* SHA-256 of the bytes */
};

enum { DIGEST_TEXT = 2 * SHA256_DIGEST_SIZE + 1 };

struct digest {
    enum digest_kind kind;
    union {
        struct sha1_ctx sha1;
        struct sha256_ctx sha256;
    };
};

/* Begins a digest. n_bytes: size of the whole stream, which git's name covers. */
void digest_begin(struct digest *d, enum digest_kind kind, uint64_t n_bytes);
void digest_add(struct digest *d, const void *bytes, size_t n);
/* Writes the digest in hexadecimal, 40 or 64 characters and a NUL. */
void digest_end(struct digest *d, char text[DIGEST_TEXT]);

/* Returns the characters of a digest. */
size_t digest_text_length(enum digest_kind kind);

#endif
