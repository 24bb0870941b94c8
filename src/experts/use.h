/* use.h - for what experts are wanted: it decides where they may lie and what leaves for them. */
#ifndef MOEFLUX_EXPERTS_USE_H
#define MOEFLUX_EXPERTS_USE_H

enum expert_use {
    USE_TOKEN,  /* by one token, which reads each once: host slots do as well as the device's */
    USE_TOKENS, /* by a few */
    USE_CHUNK,  /* by a prompt's chunk, which uses nearly all: they do not drive out those that stay */
};

#endif
