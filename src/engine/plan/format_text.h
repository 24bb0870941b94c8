/* format_text.h - in words, how a model's numbers are stored. */
#ifndef MOEFLUX_ENGINE_PLAN_FORMAT_TEXT_H
#define MOEFLUX_ENGINE_PLAN_FORMAT_TEXT_H

#include <stddef.h>

struct model_dir;

/* "3 bits g64, down 6 bits g64 in 12 of 40 layers": of the routed experts. */
void format_text_experts(const struct model_dir *d, char *out, size_t n);
/* "4 bits g64 91 %, bf16 9 %": of all other bytes, the largest shares. */
void format_text_dense(const struct model_dir *d, char *out, size_t n);

#endif
