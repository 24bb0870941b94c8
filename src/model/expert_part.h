/* expert_part.h - which of a layer's experts are meant: all, or one of two parts if the CPU computes a
 * share of every layer's experts next to a device. The expert's number alone decides (IS_CPU_EXPERT in
 * args.h). */
#ifndef MOEFLUX_MODEL_EXPERT_PART_H
#define MOEFLUX_MODEL_EXPERT_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"

struct expert_part {
    uint32_t n_cpu; /* experts of a layer that the CPU computes; 0: all experts are meant */
    bool is_cpus;   /* those are meant; else the others */
};

static inline bool expert_part_has(const struct expert_part *p, uint32_t n_experts, uint32_t expert)
{
    return p->n_cpu == 0 || IS_CPU_EXPERT(expert, p->n_cpu, n_experts) == p->is_cpus;
}

static inline uint32_t expert_part_count(const struct expert_part *p, uint32_t n_experts)
{
    return p->n_cpu == 0 ? n_experts : p->is_cpus ? p->n_cpu : n_experts - p->n_cpu;
}

#endif
