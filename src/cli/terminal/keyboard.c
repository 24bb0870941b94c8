#include "cli/terminal/keyboard.h"

#include <stdlib.h>
#include <string.h>

enum { ESC = 033, DEL = 0177 };

/* Modifiers as xterm numbers them, from 1. */
enum { SHIFT = 1, ALT = 2, CONTROL = 4 };

static const char paste_end[] = "\033[201~";

static void give(struct keyboard *k, int key)
{
    k->ready[k->n_ready++] = (uint16_t)key;
}

/* Ends the sequence. key 0: it gives nothing. */
static void end(struct keyboard *k, int key)
{
    if (k->as_is && key != KEY_PASTED)
        for (uint32_t i = 0; i < k->n; i++)
            give(k, (unsigned char)k->sequence[i]);
    else if (key)
        give(k, key);
    k->state = KEYBOARD_TEXT;
    k->n = 0;
    k->alt = false;
}

/* Whether the line editor uses the control key. Others would show as ^X or wait for a second key. Keys that
 * send signals never get here. */
static bool is_useful(char c)
{
    static const char useful[] = "\001\002\004\005\006\007\b\n\013\014\r\016\020\022\024\025\027\031";
    return (unsigned char)c >= ' ' || memchr(useful, c, sizeof useful - 1);
}

static int letter_key(char letter, unsigned modifiers)
{
    bool word = (modifiers & (ALT | CONTROL)) && !(modifiers & SHIFT);
    switch (letter) {
    case 'A':
        return modifiers ? 0 : KEY_UP;
    case 'B':
        return modifiers ? 0 : KEY_DOWN;
    case 'C':
        return word ? KEY_WORD_RIGHT : modifiers ? 0 : KEY_RIGHT;
    case 'D':
        return word ? KEY_WORD_LEFT : modifiers ? 0 : KEY_LEFT;
    case 'H':
        return modifiers ? 0 : KEY_HOME;
    case 'F':
        return modifiers ? 0 : KEY_END;
    default:
        return 0;
    }
}

static int number_key(unsigned number, unsigned modifiers)
{
    bool word = (modifiers & (ALT | CONTROL)) && !(modifiers & SHIFT);
    if (number == 3 && word)
        return KEY_DELETE_WORD_RIGHT;
    if (modifiers)
        return 0;
    switch (number) {
    case 1:
    case 7:
        return KEY_HOME;
    case 4:
    case 8:
        return KEY_END;
    case 3:
        return KEY_DELETE;
    default:
        return 0;
    }
}

/* Decodes "ESC [ 1 ; 5 C": parameters, then the last byte. */
static int csi_key(const struct keyboard *k, const char *parameters, char last)
{
    char *rest;
    unsigned number = (unsigned)strtoul(parameters, &rest, 10), modifiers = k->alt ? ALT : 0;
    if (*rest == ';' && rest[1] > '1')
        modifiers |= (unsigned)strtoul(rest + 1, NULL, 10) - 1;
    else if (last != '~' && *rest == '\0' && number > 1)
        modifiers |= number - 1; /* ESC [ 5 C */
    if (last == '^' && number == 3)
        return KEY_DELETE_WORD_RIGHT; /* rxvt */
    return last == '~' ? number_key(number, modifiers) : letter_key(last, modifiers);
}

/* Decodes the keypad, if it sends no plain digits, and cursor keys in application mode. */
static int ss3_key(const struct keyboard *k, char last)
{
    static const char from[] = "MXjklmnopqrstuvwxy", to[] = "\r=*+,-./0123456789";
    unsigned modifiers = k->alt ? ALT : 0;
    char before = k->sequence[k->n - 2];
    if (before >= '2' && before <= '9')
        modifiers |= (unsigned)(before - '1');
    const char *keypad = memchr(from, last, sizeof from - 1);
    if (keypad && !modifiers)
        return to[keypad - from];
    /* rxvt with Ctrl */
    if (last == 'c' || last == 'd')
        return letter_key((char)(last - 'a' + 'A'), CONTROL);
    return letter_key(last, modifiers);
}

static int alt_key(char c)
{
    switch (c) {
    case 'b':
    case 'B':
        return KEY_WORD_LEFT;
    case 'f':
    case 'F':
        return KEY_WORD_RIGHT;
    case 'd':
    case 'D':
        return KEY_DELETE_WORD_RIGHT;
    case DEL:
    case '\b':
        return KEY_DELETE_WORD_LEFT;
    default:
        return 0;
    }
}

/* Drops the following bytes of a character whose first byte ended a sequence. */
static void skip_rest(struct keyboard *k, char first)
{
    unsigned char c = (unsigned char)first;
    k->n_skip = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0xC0 ? 1 : 0;
}

static void begin_paste(struct keyboard *k)
{
    str_clear(&k->pasted);
    k->state = KEYBOARD_PASTE;
    k->n = 0;
    k->alt = false;
}

/* Whether a byte ends a CSI sequence. rxvt ends those with Shift with "$", which other terminals send before
 * the last byte. */
static bool is_last(char byte)
{
    return (byte >= '@' && byte <= '~') || byte == '$';
}

static void push_csi(struct keyboard *k, char byte)
{
    if (byte == '[' && k->sequence[k->n - 2] == '[') {
        k->state = KEYBOARD_CSI_LINUX; /* its function keys: ESC [ [ A */
    } else if (is_last(byte)) {
        char parameters[KEYBOARD_MAX_SEQUENCE] = "";
        const char *first = memchr(k->sequence, '[', k->n);
        size_t n = (size_t)(k->sequence + k->n - 1 - first - 1);
        memcpy(parameters, first + 1, n);
        if (byte == '~' && strcmp(parameters, "200") == 0)
            begin_paste(k);
        else
            end(k, csi_key(k, parameters, byte));
    } else if (byte < ' ' || byte > '~') {
        end(k, 0);
        skip_rest(k, byte);
    }
}

static void push_escape(struct keyboard *k, char byte)
{
    if (byte == '[')
        k->state = KEYBOARD_CSI;
    else if (byte == 'O')
        k->state = KEYBOARD_SS3;
    else if (byte == ESC && !k->alt)
        k->alt = true;
    else {
        end(k, alt_key(byte));
        skip_rest(k, byte);
    }
}

static void push_paste(struct keyboard *k, char byte)
{
    const size_t n = sizeof paste_end - 1;
    str_add(&k->pasted, &byte, 1);
    if (byte != '~' || k->pasted.len < n || memcmp(k->pasted.data + k->pasted.len - n, paste_end, n) != 0)
        return;
    k->pasted.len -= n;
    k->pasted.data[k->pasted.len] = '\0';
    end(k, KEY_PASTED);
}

static void push_text(struct keyboard *k, char byte)
{
    bool skips = k->n_skip > 0 && (byte & 0xC0) == 0x80 && !k->as_is;
    k->n_skip = skips ? k->n_skip - 1 : 0;
    if (skips)
        return;
    if (byte == ESC) {
        k->state = KEYBOARD_ESCAPE;
        k->sequence[k->n++] = byte;
    } else if (k->as_is || is_useful(byte)) {
        give(k, (unsigned char)byte);
    }
}

void keyboard_push(struct keyboard *k, char byte)
{
    k->n_ready = k->at = 0;
    if (k->state == KEYBOARD_TEXT) {
        push_text(k, byte);
        return;
    }
    if (k->state == KEYBOARD_PASTE) {
        push_paste(k, byte);
        return;
    }
    k->sequence[k->n++] = byte;
    if (k->state == KEYBOARD_ESCAPE)
        push_escape(k, byte);
    else if (k->state == KEYBOARD_CSI)
        push_csi(k, byte);
    else if (k->state == KEYBOARD_CSI_LINUX)
        end(k, 0);
    else if (byte < '0' || byte > '9')
        end(k, ss3_key(k, byte));
    if (k->n == KEYBOARD_MAX_SEQUENCE - 1)
        end(k, 0);
}

int keyboard_next(struct keyboard *k)
{
    return k->at < k->n_ready ? k->ready[k->at++] : -1;
}

bool keyboard_waits(const struct keyboard *k)
{
    return k->state != KEYBOARD_TEXT && k->state != KEYBOARD_PASTE;
}

void keyboard_give_up(struct keyboard *k)
{
    k->n_ready = k->at = 0;
    end(k, 0);
}

void keyboard_reset(struct keyboard *k)
{
    k->state = KEYBOARD_TEXT;
    k->n = k->n_skip = k->n_ready = k->at = 0;
    k->alt = false;
    str_free(&k->pasted);
}

void keyboard_free(struct keyboard *k)
{
    str_free(&k->pasted);
}
