/* chat_families.h - chat templates of families whose models may come without one. */
#ifndef MOEFLUX_TEXT_CHAT_CHAT_FAMILIES_H
#define MOEFLUX_TEXT_CHAT_CHAT_FAMILIES_H

struct chat_family {
    const char *name;                   /* the member `chat` of struct family (model/family.h) */
    const char *turn_open, *turn_close; /* control tokens that the template writes */
    const char *text;                   /* Jinja source */
};

/* Returns the family of this name (NULL: none), or NULL. */
const struct chat_family *chat_family_find(const char *name);

#endif
