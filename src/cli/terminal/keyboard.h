/* keyboard.h - decodes the bytes that a terminal sends into keys: text, keys of the line editor, and pasted
 * texts. Other keys (function keys, Insert, pages, keys with modifiers) give nothing, so that no part of
 * their escape sequences gets into the line. */
#ifndef MOEFLUX_CLI_TERMINAL_KEYBOARD_H
#define MOEFLUX_CLI_TERMINAL_KEYBOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* Keys below 256 are bytes: parts of a character, or control keys. */
enum key {
    KEY_LEFT = 256,
    KEY_RIGHT,
    KEY_UP,
    KEY_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_DELETE,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_DELETE_WORD_LEFT,
    KEY_DELETE_WORD_RIGHT,
    KEY_PASTED, /* the text is in keyboard.pasted */
};

enum keyboard_state {
    KEYBOARD_TEXT,
    KEYBOARD_ESCAPE,
    KEYBOARD_CSI,
    KEYBOARD_CSI_LINUX,
    KEYBOARD_SS3,
    KEYBOARD_PASTE
};

/* No key sends a longer sequence, in bytes. */
enum { KEYBOARD_MAX_SEQUENCE = 32 };

struct keyboard { /* zeroed at first */
    /* sequences other than pastes are passed on byte by byte: the user's .editrc has bindings for them */
    bool as_is;
    struct str pasted;
    enum keyboard_state state;
    bool alt;                             /* a second escape came before the sequence */
    uint32_t n_skip;                      /* following bytes to drop: the rest of a character in a sequence */
    uint32_t n;                           /* bytes in `sequence` */
    char sequence[KEYBOARD_MAX_SEQUENCE]; /* the sequence so far, escapes included */
    uint16_t ready[KEYBOARD_MAX_SEQUENCE + 1];
    uint32_t n_ready, at; /* keys in `ready`; those from `at` on were not returned yet */
};

/* Takes a byte. Only allowed when keyboard_next has returned -1. */
void keyboard_push(struct keyboard *k, char byte);
/* Returns the next key; -1: more bytes are needed. */
int keyboard_next(struct keyboard *k);

/* Whether a sequence has begun. If nothing follows within KEYBOARD_WAIT_MS it is a single key (Esc, Alt-[):
 * call keyboard_give_up then. */
bool keyboard_waits(const struct keyboard *k);
enum { KEYBOARD_WAIT_MS = 500 };
void keyboard_give_up(struct keyboard *k);

/* Drops an unfinished sequence. */
void keyboard_reset(struct keyboard *k);
void keyboard_free(struct keyboard *k);

#endif
