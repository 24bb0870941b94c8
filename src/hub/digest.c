#include "hub/digest.h"

#include <inttypes.h>
#include <stdio.h>

#include <nettle/base16.h>

static size_t digest_size(enum digest_kind kind)
{
    return kind == DIGEST_SHA256 ? SHA256_DIGEST_SIZE : SHA1_DIGEST_SIZE;
}

size_t digest_text_length(enum digest_kind kind)
{
    return BASE16_ENCODE_LENGTH(digest_size(kind));
}

void digest_begin(struct digest *d, enum digest_kind kind, uint64_t n_bytes)
{
    char head[40];
    d->kind = kind;
    if (kind == DIGEST_SHA256) {
        sha256_init(&d->sha256);
        return;
    }
    sha1_init(&d->sha1);
    digest_add(d, head, (size_t)snprintf(head, sizeof head, "blob %" PRIu64, n_bytes) + 1);
}

void digest_add(struct digest *d, const void *bytes, size_t n)
{
    if (d->kind == DIGEST_SHA256)
        sha256_update(&d->sha256, n, bytes);
    else
        sha1_update(&d->sha1, n, bytes);
}

void digest_end(struct digest *d, char text[DIGEST_TEXT])
{
    uint8_t sum[SHA256_DIGEST_SIZE];
    size_t n = digest_size(d->kind);
    if (d->kind == DIGEST_SHA256)
        sha256_digest(&d->sha256, n, sum);
    else
        sha1_digest(&d->sha1, n, sum);
    base16_encode_update(text, n, sum);
    text[digest_text_length(d->kind)] = '\0';
}
