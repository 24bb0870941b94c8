/* text_api.h - the tokenizer of moeflux.h, for the chats that have one. */
#ifndef MOEFLUX_ENGINE_TEXT_API_H
#define MOEFLUX_ENGINE_TEXT_API_H

struct tokenizer;

struct moeflux_tokenizer {
    struct tokenizer *tokenizer;
};

#endif
