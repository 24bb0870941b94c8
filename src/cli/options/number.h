/* number.h - numbers as users write them. The whole text must be the number: no trailing characters, no
 * blanks. */
#ifndef MOEFLUX_CLI_OPTIONS_NUMBER_H
#define MOEFLUX_CLI_OPTIONS_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_LIST_MAX = 16 };
struct number_list {
    uint32_t n;
    uint32_t values[NUMBER_LIST_MAX];
};

struct share_list {
    uint32_t n;
    float values[NUMBER_LIST_MAX];
};
struct bytes_list {
    uint32_t n;
    uint64_t values[NUMBER_LIST_MAX];
};

/* Where routed experts are computed: "gpu", "cpu" or "cpu:0.5". */
struct expert_place {
    bool is_given, is_cpu;
    float share; /* part of each layer's experts on the CPU, more than 0 and less than 1; 0: all */
};

/* A decimal whole number in [lo, hi]. */
bool number_int(const char *text, int64_t lo, int64_t hi, int64_t *out);

/* A finite decimal number. */
bool number_real(const char *text, double *out);

/* Bytes: "1048576", "512M", "1.5GiB", "2GB". K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; KB, MB,
 * GB, TB are powers of 1000. At least one byte. */
bool number_bytes(const char *text, uint64_t *out);

/* Whole numbers in [lo, hi], separated by commas: at least one, at most NUMBER_LIST_MAX. */
bool number_list(const char *text, int64_t lo, int64_t hi, struct number_list *out);

/* Lists of numbers above 0, "3,1", and of sizes, "20G,8G": at least one item, at most NUMBER_LIST_MAX. */
bool number_shares(const char *text, struct share_list *out);
bool number_bytes_list(const char *text, struct bytes_list *out);

bool number_place(const char *text, struct expert_place *out);

/* Writes "1.23 GB" (powers of 1000, as usual for file sizes and bandwidths). Returns buf. */
char *number_show_bytes(char *buf, size_t cap, double bytes);

#endif
