/* format_text.h - describes in words how a model's numbers are stored. */
#ifndef MOEFLUX_ENGINE_PLAN_FORMAT_TEXT_H
#define MOEFLUX_ENGINE_PLAN_FORMAT_TEXT_H

#include <stddef.h>

struct model_dir;

/* Describes the routed experts: "3 bits g64, down 6 bits g64 in 12 of 40 layers". */
void format_text_experts(const struct model_dir *d, char *out, size_t n);
/* Describes all other bytes in the files, by their largest shares: "4 bits g64 91 %, bf16 9 %". */
void format_text_dense(const struct model_dir *d, char *out, size_t n);

#endif
