/* offline.h - compiles a model's pipelines for hardware that is not in this machine. RADV has a device for
 * every AMD chip that compiles and takes no work (RADV_FORCE_FAMILY=NAME); so have Intel's drivers with
 * intel_stub_gpu. A program with this file (mk/tests.mk, OFFLINE) opens such a device, and nothing that it
 * records is submitted: kernels write nothing. All else is what the program does on a real device.
 *
 * Vulkan's functions are replaced for the whole process: one model at a time. */
#ifndef MOEFLUX_TESTS_OFFLINE_H
#define MOEFLUX_TESTS_OFFLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* What a pipeline runs for. */
enum offline_phase { OFFLINE_OPEN, OFFLINE_PROMPT, OFFLINE_DECODE, OFFLINE_BATCH, OFFLINE_PHASES };

enum { OFFLINE_UNKNOWN = -1 }; /* a number that the driver does not report */

/* A pipeline and what the driver reports about it. */
struct offline_pipeline {
    const char *kernel;              /* its name in kernels/; static */
    char constants[256];             /* specialisation constants, "1,2,3" */
    uint32_t n_runs[OFFLINE_PHASES]; /* dispatches */
    int64_t lanes;                   /* subgroup size */
    int64_t registers;               /* vector registers of a lane (AMD); the most that are live (Intel) */
    int64_t spills;                  /* vector registers (AMD) or instructions (Intel) that go to memory */
    int64_t scalar_spills;           /* scalar registers that go to vector registers (AMD) */
    int64_t scratch_bytes, shared_bytes, code_bytes;
    int64_t occupancy; /* subgroups that a SIMD unit holds at once (AMD) */
    double compile_ms; /* processor time of the driver */
};

struct offline_request {
    const char *dir;           /* model directory */
    uint32_t lanes;            /* subgroup size that the device reports; 0: its own */
    bool is_brief;             /* one pipeline of each kernel */
    uint32_t chunk, context;   /* see moeflux_options */
    uint64_t gpu_memory_bytes; /* see moeflux_options */
};

/* Opens the model on the first device. Evaluates a prompt, single tokens, and a batch of sequences, then
 * compiles the rest of the model's pipelines. *out: [*n], freed by the caller. device: [256], receives the
 * device's name. Errors: those of moeflux_model_open and moeflux_session_eval; ERR_DEVICE: the driver reports
 * nothing about pipelines. */
int offline_compile(const struct offline_request *q, struct offline_pipeline **out, size_t *n, char *device,
                    struct moeflux_err *e);

#endif
