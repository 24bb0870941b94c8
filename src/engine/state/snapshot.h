/* snapshot.h - the file format of a sequence's saved state, versions 1 to 3. Little-endian, no padding.
 *
 *   header      u32 magic, version, layers, interval of full attention (1: every layer), key/value heads
 *               (MLA: heads), head size (MLA: nope + rope), bytes of a convolution window, bytes of S;
 *               that is all of version 1 (32 bytes)
 *               u32 kv_lora_rank, rope_dim; that is all of version 2 (40 bytes)
 *               u32 type of the rows, tokens n, checkpoints c, 0; u64 fingerprint, bytes of the file,
 *               XXH3 of the header before it; version 3 (80 bytes)
 *   version 3   i32 [n] ids, -1: not known
 *   each layer  rows: i32 n, [n][first kind], [n][second kind]; recurrence: current window, S
 *   version 3   c times, ascending: u32 position, each recurrent layer's window and S;
 *               u64 XXH3 of all bytes before it */
#ifndef MOEFLUX_ENGINE_STATE_SNAPSHOT_H
#define MOEFLUX_ENGINE_STATE_SNAPSHOT_H

#include <stdint.h>

#include "arch/arch.h"
#include "moeflux.h"

enum { SNAPSHOT_MAGIC = 0x4D464C58, SNAPSHOT_MAX_HEADER = 80, SNAPSHOT_PIECE = 1 << 20 };

/* Properties that the file and the model must share. */
enum snapshot_word {
    SNAPSHOT_LAYERS,
    SNAPSHOT_INTERVAL,
    SNAPSHOT_HEADS,
    SNAPSHOT_HEAD_DIM,
    SNAPSHOT_WINDOW,
    SNAPSHOT_RECURRENT,
    SNAPSHOT_LATENT,
    SNAPSHOT_ROPE,
    SNAPSHOT_WORDS,
};

struct snapshot {
    uint32_t version;
    uint32_t words[SNAPSHOT_WORDS]; /* version 1: the last two are 0 */
    enum kv_type kv;                /* number type of the rows; float32 before version 3 */
    uint32_t n_tokens;              /* not in the header before version 3 */
    uint32_t n_checkpoints;         /* version 3, like the rest */
    uint64_t fingerprint, bytes;
};

/* Returns a snapshot with the words of the model. */
struct snapshot snapshot_of_model(const struct moeflux_model *m);
/* Copies the n numbers of a row from one type to another. */
void snapshot_copy_row(void *dst, enum kv_type to, const void *src, enum kv_type from, uint32_t n);
/* Returns the bytes of the header; 0: no such version. */
uint32_t snapshot_header_bytes(uint32_t version);
/* Returns the bytes of the whole file. h: only version, kv, n_tokens and n_checkpoints are used. */
uint64_t snapshot_bytes(const struct moeflux_model *m, const struct snapshot *h);

/* Fills out [SNAPSHOT_MAX_HEADER], returns the header's bytes. */
uint32_t snapshot_encode(const struct snapshot *h, uint8_t *out);
/* Reads the header of an open file of `bytes` bytes. ERR_IO; ERR_FORMAT: no snapshot, an unknown version, too
 * short; in version 3 also a wrong checksum of the header or length. */
int snapshot_read_header(struct snapshot *h, int fd, const char *path, uint64_t bytes, struct moeflux_err *e);
/* Compares the words with the model's. ERR_FORMAT names the first that differs. */
int snapshot_check_words(const struct snapshot *h, const struct moeflux_model *m, const char *path,
                         struct moeflux_err *e);

#endif
