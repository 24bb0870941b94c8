#include "hub/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint32_t sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static uint32_t load(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void sha256_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    memcpy(s, state, sizeof s);
    for (size_t i = 0; i < 16; i++)
        w[i] = load(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 25) ^ rotate(a, 14) ^ a >> 3) +
               (rotate(b, 15) ^ rotate(b, 13) ^ b >> 10);
    }
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t one = s[7] + (rotate(e, 26) ^ rotate(e, 21) ^ rotate(e, 7)) + ((e & s[5]) ^ (~e & s[6])) +
                       sha256_constants[i] + w[i];
        uint32_t two =
            (rotate(a, 30) ^ rotate(a, 19) ^ rotate(a, 10)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void digest_sha256_plain(uint32_t state[8], const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sha256_block(state, bytes + i * DIGEST_BLOCK);
}

static void sha1_block(uint32_t state[5], const uint8_t *p)
{
    static const uint32_t constants[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (size_t i = 0; i < 16; i++)
        w[i] = load(p + 4 * i);
    for (int i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20              ? (b & c) | (~b & d)
                     : i >= 40 && i < 60 ? (b & c) | (b & d) | (c & d)
                                         : b ^ c ^ d;
        uint32_t next = rotate(a, 5) + f + e + constants[i / 20] + w[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

static void add_blocks(struct digest *d, const uint8_t *bytes, size_t n)
{
    if (d->is_fast) {
        digest_x86_sha256(d->state, bytes, n);
        return;
    }
    if (d->kind == DIGEST_SHA256) {
        digest_sha256_plain(d->state, bytes, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        sha1_block(d->state, bytes + i * DIGEST_BLOCK);
}

void digest_begin(struct digest *d, enum digest_kind kind, uint64_t n_bytes)
{
    static const uint32_t first[2][8] = {
        {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
        {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
    char head[40];
    *d = (struct digest){.kind = kind, .is_fast = kind == DIGEST_SHA256 && digest_x86_works()};
    memcpy(d->state, first[kind], sizeof d->state);
    if (kind == DIGEST_GIT)
        digest_add(d, head, (size_t)snprintf(head, sizeof head, "blob %" PRIu64, n_bytes) + 1);
}

void digest_add(struct digest *d, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    size_t held = d->n_bytes % DIGEST_BLOCK;
    d->n_bytes += n;
    if (held) {
        size_t room = DIGEST_BLOCK - held, part = n < room ? n : room;
        memcpy(d->rest + held, p, part);
        p += part;
        n -= part;
        if (part < room)
            return;
        add_blocks(d, d->rest, 1);
    }
    add_blocks(d, p, n / DIGEST_BLOCK);
    memcpy(d->rest, p + n / DIGEST_BLOCK * DIGEST_BLOCK, n % DIGEST_BLOCK);
}

size_t digest_text_length(enum digest_kind kind)
{
    return kind == DIGEST_SHA256 ? 64 : 40;
}

void digest_end(struct digest *d, char text[DIGEST_TEXT])
{
    uint64_t bits = d->n_bytes * 8;
    uint8_t tail[2 * DIGEST_BLOCK] = {0x80};
    size_t held = d->n_bytes % DIGEST_BLOCK;
    size_t n = (held < DIGEST_BLOCK - 8 ? DIGEST_BLOCK : 2 * DIGEST_BLOCK) - held;
    for (size_t i = 0; i < 8; i++)
        tail[n - 1 - i] = (uint8_t)(bits >> 8 * i);
    digest_add(d, tail, n);
    for (size_t i = 0; i < digest_text_length(d->kind) / 8; i++)
        snprintf(text + 8 * i, 9, "%08" PRIx32, d->state[i]);
}
