/* snapshot.h - the file format of a sequence's saved state, versions 1 to 4. Little-endian, no padding.
 *
 *   header      u32 magic, version, layers, interval of full attention (1: every layer), key/value heads
 *               (MLA: heads), head size (MLA: nope + rope), bytes of a convolution window, bytes of S;
 *               that is all of version 1 (32 bytes)
 *               u32 kv_lora_rank, rope_dim; that is all of version 2 (40 bytes)
 *               u32 type of the rows, tokens n, checkpoints c, 0 or 1; u64 fingerprint, bytes of the file,
 *               XXH3 of the header before it; version 3 (80 bytes)
 *               version 4 has after the layers: u32 number of all stores, u64 XXH3 of their layout, 4 zeros
 *   from 3 on   i32 [n] ids, -1: not known
 *   each layer  i32 n if it has rows; its stores (arch.h) in order: rows [n], fixed: the current copy;
 *               windows: rows [n], in version 4 those that the next token may see
 *   from 3 on   c times, ascending: u32 position, each layer's fixed stores, in version 4 also its windows
 *               [window - 1], zeros after the last row
 *   if the header has 1 in place of its last 0: rows of the drafter (engine/run/drafter.h): u32 their number
 *               r, position of the first, hidden states h that wait, 0; u64 fingerprint of the drafter; its
 *               layer as those above, as version 4 has it for r tokens; f32 [h][hidden]
 *   from 3 on   u64 XXH3 of all bytes before it
 *
 * A model is saved in version 3 if every layer has two stores, rows of all positions or fixed; else in 4. */
#ifndef MOEFLUX_ENGINE_STATE_SNAPSHOT_H
#define MOEFLUX_ENGINE_STATE_SNAPSHOT_H

#include <stdint.h>

#include "arch/arch.h"
#include "moeflux.h"

enum { SNAPSHOT_MAGIC = 0x4D464C58, SNAPSHOT_MAX_HEADER = 80, SNAPSHOT_PIECE = 1 << 20 };

/* Properties that the file and the model must share, in versions 1 to 3. */
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
    uint32_t words[SNAPSHOT_WORDS]; /* version 1: the last two are 0; version 4: layers, the layout */
    enum kv_type kv;                /* type of the KV cache; float32 before version 3 */
    uint32_t n_tokens;              /* not in the header before version 3 */
    uint32_t n_checkpoints;         /* versions 3 and 4, like the rest */
    bool has_drafter;
    uint64_t fingerprint, bytes;
};

/* What precedes the drafter's rows. */
struct snapshot_drafter {
    uint32_t n_rows, base, n_waiting, zero;
    uint64_t fingerprint;
};

/* Returns whether versions 1 to 3 can hold the model's states: every layer has two stores of one kind. */
bool snapshot_has_old_form(const struct moeflux_model *m);
/* Returns the version that states of the model are saved in by default. */
uint32_t snapshot_version(const struct moeflux_model *m);
/* Returns a snapshot with the words of the model. */
struct snapshot snapshot_of_model(const struct moeflux_model *m, uint32_t version);
/* Returns the first row of a store in a file; the end is stores_n_rows. */
uint32_t snapshot_first_row(const struct arch_store *t, const struct snapshot *h);
/* Returns how the numbers of a row are stored in a file: before version 3 as float32. */
enum kv_type snapshot_row_type(const struct arch_store *t, const struct snapshot *h);
/* Copies a row from one type to another, which must be float32 if they differ. */
void snapshot_copy_row(const struct arch_store *t, void *dst, enum kv_type to, const void *src,
                       enum kv_type from);
/* Returns the bytes of the header; 0: no such version. */
uint32_t snapshot_header_bytes(uint32_t version);
/* Returns the bytes of the whole file without the drafter's rows, which precede the last 8. h: only version,
 * kv, n_tokens and n_checkpoints are used. */
uint64_t snapshot_bytes(const struct moeflux_model *m, const struct snapshot *h);
/* Returns whether a file of `bytes` bytes has room for that and, if the header says so, a drafter's rows. */
bool snapshot_has_length(const struct moeflux_model *m, const struct snapshot *h, uint64_t bytes);
/* Returns the form in which the drafter's rows are saved. */
struct snapshot snapshot_of_drafter(const struct moeflux_model *m, const struct snapshot_drafter *d);
/* Returns the bytes of the drafter's part. m: the model. */
uint64_t snapshot_drafter_bytes(const struct moeflux_model *m, const struct snapshot_drafter *d);

/* Fills out [SNAPSHOT_MAX_HEADER], returns the header's bytes. */
uint32_t snapshot_encode(const struct snapshot *h, uint8_t *out);
/* Reads the header of an open file of `bytes` bytes. ERR_IO; ERR_FORMAT: no snapshot, an unknown version, too
 * short; from version 3 on also a wrong checksum of the header or length. */
int snapshot_read_header(struct snapshot *h, int fd, const char *path, uint64_t bytes, struct moeflux_err *e);
/* Compares the words with the model's. ERR_FORMAT names the first that differs. */
int snapshot_check_words(const struct snapshot *h, const struct moeflux_model *m, const char *path,
                         struct moeflux_err *e);

#endif
