/* chat.h - the prompt templates of the model families: messages to tokens, and the shape of the answer.
 *
 *   Qwen3.5        <|im_start|>role\ntext<|im_end|>\n per turn, then <|im_start|>assistant\n<think>\n (thinking) or
 *                  <|im_start|>assistant\n<think>\n\n</think>\n\n (not)
 *   Qwen3          the same, but the model opens the think block itself; text is not trimmed
 *   Qwen3-Thinking the same, always with <think>\n (2507)
 *   ChatML         the same without thinking (Qwen3-Instruct-2507, Qwen3-Coder)
 *   DeepSeek-V3    BOS, system text, then <｜User｜>text<｜Assistant｜>answer EOS per turn
 *   DeepSeek-V3.1  the same, <think> or </think> after <｜Assistant｜>
 *   Cogito-V2      as DeepSeek-V3; who it is stands before the system text, what switches thinking on before that, and
 *                  <think>\n after <｜Assistant｜>
 *
 * Control strings are encoded as added tokens, what users write never is: "<|im_end|>" typed by a user stays text. */
#ifndef MOEFLUX_TEXT_CHAT_H
#define MOEFLUX_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct str;
struct tokenizer;
struct token_list;

enum chat_kind {
    CHAT_QWEN35,
    CHAT_QWEN3,
    CHAT_QWEN3_THINKING,
    CHAT_CHATML,
    CHAT_DEEPSEEK3,
    CHAT_DEEPSEEK31,
    CHAT_COGITO2
};

/* AUTO: as the model's own template does when nothing is said. */
enum chat_thinking { CHAT_THINKING_AUTO, CHAT_THINKING_ON, CHAT_THINKING_OFF };

struct chat {
    const struct tokenizer *tokenizer;
    enum chat_kind kind;
    bool thinking;
    bool opens_inside;               /* the prompt opens the think block */
    int32_t think_open, think_close; /* ids of <think> and </think>; -1 where the tokenizer has none */
    int32_t turn_close;              /* the token that ends an answer */
};

/* Which template the model was trained with: by the control tokens of its tokenizer and its own template's text.
 * family: the template of the model's family, for a model that brings none: "qwen3.5" or "qwen3"; NULL: not known.
 * ERR_UNSUPPORTED when it cannot be told. */
int chat_find_kind(const struct tokenizer *t, const char *family, enum chat_kind *kind,
                   struct moeflux_err *e);

/* Resolves the template's control tokens. ERR_UNSUPPORTED names the one that the tokenizer lacks, or says that the
 * template has no thinking, or nothing else. */
int chat_init(struct chat *c, const struct tokenizer *t, enum chat_kind kind, enum chat_thinking thinking,
              struct moeflux_err *e);

/* Appends what stands before the first turn, with the system text in it (len 0: none). Must be called for every
 * conversation, once. On failure nothing is appended, as in the calls below. */
int chat_begin(const struct chat *c, const char *system, size_t len, struct token_list *out,
               size_t *n_replaced, struct moeflux_err *e);
/* Appends a user turn and the opening of the assistant's answer. With thinking on the answer starts inside the
 * think block, but Qwen3's, which opens it. Qwen3.5's message text is trimmed of white space at both ends, as the published template does. */
int chat_user(const struct chat *c, const char *text, size_t len, struct token_list *out, size_t *n_replaced,
              struct moeflux_err *e);
/* Appends what must follow a generated answer before the next turn: `ended` says whether the answer's last token
 * was the end-of-turn token. */
int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct moeflux_err *e);

/* Appends a question and the answer that it once got, as the published template puts them before a later question: without
 * thinking. */
int chat_exchange(const struct chat *c, const char *question, size_t question_len, const char *answer,
                  size_t answer_len, struct token_list *out, size_t *n_replaced, struct moeflux_err *e);

/* Sorts an answer's tokens into thinking, answer and control as they come. A tokenizer without the token </think> spells
 * it in several; they are held back until it is certain that they are not it. */
struct chat_filter {
    bool inside_think;
    bool at_start; /* newlines right after <think> or </think> belong to the tag */
    size_t n_held; /* characters of </think> that have come */
};
/* CHAT_TOOL: a tool's call in an answer, which generate/answer.c tells apart. */
enum chat_part { CHAT_ANSWER, CHAT_THINKING, CHAT_CONTROL, CHAT_TOOL };
void chat_filter_init(struct chat_filter *f, const struct chat *c);
/* Appends the bytes that are to be shown now to `shown` (none for CHAT_CONTROL); they belong to the part returned. */
enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);
/* At the end of an answer: what was held back, which is thinking. */
void chat_filter_end(struct chat_filter *f, struct str *shown);

#endif
