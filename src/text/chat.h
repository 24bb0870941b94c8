/* chat.h - the prompt template of a model family: messages to tokens, and the shape of the answer.
 *
 * Qwen3.5: <|im_start|>role\ntext<|im_end|>\n per turn, then <|im_start|>assistant\n<think>\n (thinking on) or
 * <|im_start|>assistant\n<think>\n\n</think>\n\n (off). Control strings are encoded as added tokens, what users
 * write never is: "<|im_end|>" typed by a user stays text. */
#ifndef MOEFLUX_TEXT_CHAT_H
#define MOEFLUX_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct tokenizer;
struct token_list;

enum chat_kind { CHAT_QWEN35 };

struct chat {
    const struct tokenizer *tokenizer;
    enum chat_kind kind;
    bool thinking;
    int32_t think_open, think_close; /* ids of <think> and </think>; -1 where the tokenizer has none */
};

/* Resolves the template's control tokens. ERR_UNSUPPORTED names the one that the tokenizer lacks. */
int chat_init(struct chat *c, const struct tokenizer *t, enum chat_kind kind, bool thinking, struct err *e);

/* Appends a system turn. On failure nothing is appended, as in the calls below. */
int chat_system(const struct chat *c, const char *text, size_t len, struct token_list *out,
                size_t *n_replaced, struct err *e);
/* Appends a user turn and the opening of the assistant's answer. With thinking on the answer starts inside the
 * think block. Message text is trimmed of white space at both ends, as the published template does. */
int chat_user(const struct chat *c, const char *text, size_t len, struct token_list *out, size_t *n_replaced,
              struct err *e);
/* Appends what must follow a generated answer before the next turn: `ended` says whether the answer's last token
 * was the end-of-turn token (then only the newline is missing). */
int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct err *e);

/* Sorts an answer's tokens into thinking, answer and control as they come. */
struct chat_filter {
    bool inside_think;
    bool at_start; /* leading newlines after </think> are not part of the answer */
};
enum chat_part { CHAT_ANSWER, CHAT_THINKING, CHAT_CONTROL };
void chat_filter_init(struct chat_filter *f, const struct chat *c);
enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id);

#endif
