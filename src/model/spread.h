/* spread.h - experts that lie in several directories, so that several disks are read at once.
 *
 * Every expert is cut into pieces of `stripe` bytes (the last may be shorter). Piece p of expert e lies in
 * part (e + p) mod n_parts, at e * stripe of the layer's file there. So every single expert comes from all
 * disks at once: with whole experts on one disk each, the few that a token misses would often lie on the same
 * one. A stripe is a whole number of blocks, which direct reads need, and the turn by e gives every part the
 * same number of bytes, also where an expert has fewer blocks than there are parts.
 *
 * Part 0 is the model directory itself. Its spread.json names the others, and all parts have the same id:
 *   spread.json {"id": "16 hex digits", "stripe": bytes, "parts": ["path of part 1", ...]}; without `stripe`
 *                 it is each layer's own, the smallest whose n_parts pieces hold an expert: experts of layers
 *                 may differ in size PART/part.json {"id": ..., "part": 1, "parts": 2}, beside
 *                 PART/packed_experts/layer_NN.bin */
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
    uint64_t stripe;  /* 0: each layer has its own, that of spread_of */
};

/* What `convert` chooses. With one part the stripe is the whole expert. */
struct spread spread_of(uint64_t expert_bytes, uint32_t n_parts);

/* `s` for a layer whose experts have so many bytes: its stripe is known. */
struct spread spread_of_layer(const struct spread *s, uint64_t expert_bytes);

struct spread_piece {
    uint32_t part;
    uint64_t off;       /* in the layer's file of that part */
    uint64_t at, bytes; /* of the expert */
};

/* How many pieces an expert of so many bytes has: at most n_parts, each in another part. */
uint32_t spread_n_pieces(const struct spread *s, uint64_t expert_bytes);
struct spread_piece spread_piece(const struct spread *s, uint64_t expert_bytes, uint32_t expert,
                                 uint32_t piece);

/* A model directory's parts. */
struct spread_dirs {
    struct spread spread;
    uint64_t id;
    char *file; /* spread.json; NULL: there is none */
    char *paths
        /* [0] is NULL; else as spread.json has them, relative ones joined to its directory */
        [SPREAD_MAX_PARTS];
};

/* Reads spread.json of a model directory. Without one: one part. ERR_FORMAT names the file and the key. The
 * parts themselves are not looked at. */
int spread_read(struct spread_dirs *d, const char *dir, struct moeflux_err *e);
void spread_free(struct spread_dirs *d);

/* Looks at part `part` >= 1: ERR_IO, it is not there; ERR_FORMAT, it is another model's, or another part. The
 * error says how to correct it. */
int spread_check_part(const struct spread_dirs *d, uint32_t part, struct moeflux_err *e);

#endif
