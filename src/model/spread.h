/* spread.h - spreads experts over several directories, so that several disks are read at once.
 *
 * Every expert is cut into pieces of `stripe` bytes; the last may be shorter. Piece p of expert e lies in
 * part (e + p) mod n_parts, at e * stripe of that part's file of the layer. So all disks share the read of
 * each expert. With whole experts on one disk each, the few that a token misses would often lie on the same
 * disk. A stripe is a whole number of blocks, which direct reads need. Adding e gives every part the same
 * number of bytes, even if an expert has fewer blocks than there are parts.
 *
 * Part 0 is the model directory. Its spread.json names the others. All parts have the same id:
 *   spread.json     {"id": "16 hex digits", "stripe": bytes, "parts": ["path of part 1", ...]}
 *                   without `stripe` each layer has its own, the smallest whose n_parts pieces hold
 *                   an expert; then layers may have experts of different sizes
 *   PART/part.json  {"id": ..., "part": 1, "parts": 2}, next to PART/packed_experts/layer_NN.bin */
#ifndef MOEFLUX_MODEL_SPREAD_H
#define MOEFLUX_MODEL_SPREAD_H

#include <stdint.h>

struct moeflux_err;

#define SPREAD_FILE      "spread.json"
#define SPREAD_PART_FILE "part.json"

/* A request to the reader has at most EXPERT_MAX_EXTENTS extents, so there can be no more parts. */
enum { SPREAD_MAX_PARTS = 8, SPREAD_ALIGN = 4096 };

struct spread {
    uint32_t n_parts; /* 1: all in the model directory */
    uint64_t stripe;  /* bytes; 0: each layer has the one that spread_of gives it */
};

/* Returns what `convert` chooses. With one part the stripe is the whole expert. */
struct spread spread_of(uint64_t expert_bytes, uint32_t n_parts);

/* Returns `s` with the stripe of a layer whose experts have expert_bytes bytes. */
struct spread spread_of_layer(const struct spread *s, uint64_t expert_bytes);

struct spread_piece {
    uint32_t part;
    uint64_t off;       /* bytes from the start of that part's file of the layer */
    uint64_t at, bytes; /* offset in the expert, length */
};

/* Returns the number of pieces of an expert: at most n_parts, each in another part. */
uint32_t spread_n_pieces(const struct spread *s, uint64_t expert_bytes);
struct spread_piece spread_piece(const struct spread *s, uint64_t expert_bytes, uint32_t expert,
                                 uint32_t piece);

/* A model directory's parts. */
struct spread_dirs {
    struct spread spread;
    uint64_t id;
    char *file; /* spread.json; NULL: there is none */
    /* [0]: NULL; others: from spread.json, relative ones joined to its directory */
    char *paths[SPREAD_MAX_PARTS];
};

/* Reads the spread.json of a model directory; without one there is one part. Does not look at the other
 * parts. ERR_FORMAT names the file and the key. */
int spread_read(struct spread_dirs *d, const char *dir, struct moeflux_err *e);
void spread_free(struct spread_dirs *d);

/* Checks part `part` >= 1. ERR_IO: it is missing. ERR_FORMAT: it belongs to another model, or is another
 * part. The message says how to correct it. */
int spread_check_part(const struct spread_dirs *d, uint32_t part, struct moeflux_err *e);

#endif
