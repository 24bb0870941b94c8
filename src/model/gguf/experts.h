/* experts.h - finds where a GGUF file's routed experts lie: three runs of bytes each, in tensors that have a
 * projection of all experts of a layer. */
#ifndef MOEFLUX_MODEL_GGUF_EXPERTS_H
#define MOEFLUX_MODEL_GGUF_EXPERTS_H

struct model_dir;
struct moeflux_err;

/* Fills m->experts, places, expert_bytes and max_expert_bytes. ERR_FORMAT: a tensor is missing or has another
 * shape. ERR_UNSUPPORTED: gate and up have different formats. */
int gguf_experts_place(struct model_dir *m, struct moeflux_err *e);

#endif
