/* keyboard.h - the bytes that a terminal sends as keys: text, the keys that a line editor has a use for, and
 * pasted texts. What else a keyboard has (function keys, Insert, pages, keys with modifiers) gives nothing,
 * so that no part of its escape sequence ends up in the line. */
#ifndef MOEFLUX_CLI_TERMINAL_KEYBOARD_H
#define MOEFLUX_CLI_TERMINAL_KEYBOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* Beyond the bytes, which stand for themselves: parts of a character, or control keys. */
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

/* Longer sequences are no key's. */
enum { KEYBOARD_MAX_SEQUENCE = 32 };

struct keyboard { /* zeroed at first */
    /* sequences that are no paste are passed on byte by byte: the editor has bindings of its own */
    bool as_is;
    struct str pasted;
    enum keyboard_state state;
    bool alt;                             /* a second escape came before the sequence */
    uint32_t n_skip;                      /* bytes of a character that stands for nothing, if they come */
    uint32_t n;                           /* of `sequence` */
    char sequence[KEYBOARD_MAX_SEQUENCE]; /* what has come of it, the escapes included */
    uint16_t ready[KEYBOARD_MAX_SEQUENCE + 1];
    uint32_t n_ready, at; /* keys that wait in `ready` from `at` on */
};

/* Takes a byte; only when keyboard_next has nothing left. */
void keyboard_push(struct keyboard *k, char byte);
/* The next key, or -1: more bytes are needed. */
int keyboard_next(struct keyboard *k);

/* Whether a sequence is not whole, which may be one key (Esc, Alt-[) if nothing follows within
 * KEYBOARD_WAIT_MS: then keyboard_give_up. */
bool keyboard_waits(const struct keyboard *k);
enum { KEYBOARD_WAIT_MS = 500 };
void keyboard_give_up(struct keyboard *k);

/* Forgets what is not whole. */
void keyboard_reset(struct keyboard *k);
void keyboard_free(struct keyboard *k);

#endif
