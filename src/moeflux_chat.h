/* moeflux_chat.h - answers of the models of moeflux.h.
 *
 *   struct moeflux_chat           requests to answers: chat template, tools, grammars, batched decode
 *   struct moeflux_pool           many requests: a queue, threads, what prompts have in common
 *   struct moeflux_conversation   questions and answers in one session, with other answers and going back
 *   struct moeflux_grammar        which tokens may come next, for callers who sample them
 *
 * Threads, errors and ownership are those of moeflux.h, which is the only file of the project that this one
 * includes. It compiles as C11 and as C++. */
#ifndef MOEFLUX_CHAT_H
#define MOEFLUX_CHAT_H

#include "moeflux.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The library hides every symbol that is declared neither here nor in moeflux.h. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* --- chats and answers --- */

/* What answers need in addition to a model: its tokenizer and chat template, compiled grammars, and batched
 * decode. Threads may use a chat at the same time, each with its own request and session: their answers are
 * then decoded together, and the results are batch-invariant. */
struct moeflux_chat;
/* What is asked and how it is answered. Used by one thread at a time, except moeflux_request_cancel. */
struct moeflux_request;
/* A finished answer. */
struct moeflux_answer;

/* Opens a chat. The caller owns *out (moeflux_chat_close); the model must outlive it. A model without a chat
 * template answers requests with `raw` only, one without a tokenizer those of moeflux_request_set_ids.
 * Errors: _IO, _FORMAT, _UNSUPPORTED, _MEMORY. */
int moeflux_chat_open(struct moeflux_chat **out, struct moeflux_model *m, struct moeflux_err *e);
/* Lets the chat compute answers in sessions of n models: copies of one on different devices. They replace
 * those that it had, as after the loss of a device. To be called while no answer is computed. Errors: _USAGE
 * (n is not 1 to MOEFLUX_MAX_DEVICES), _MEMORY: the chat can only be closed then. */
int moeflux_chat_use_models(struct moeflux_chat *c, struct moeflux_model *const *models, uint32_t n,
                            struct moeflux_err *e);
/* Closes a chat, once no answer is computed. Requests, sessions and answers remain. NULL is legal. */
void moeflux_chat_close(struct moeflux_chat *c);

/* Checks without a model whether a Jinja text can be parsed. Errors: _FORMAT, _UNSUPPORTED, _MEMORY. */
int moeflux_template_check(const char *text, struct moeflux_err *e);
/* Replaces the model's chat template by a Jinja text (NULL: it stays), and sets more variables of the
 * template: a JSON object (NULL: none), over which a request's chat_template_kwargs take precedence. To be
 * called while no answer is computed. Errors: _FORMAT (no template, or no object), _UNSUPPORTED (the
 * template cannot be run), _USAGE (a pool of the chat's models runs), _MEMORY; nothing changes. */
int moeflux_chat_use_template(struct moeflux_chat *c, const char *template_text, const char *variables,
                              struct moeflux_err *e);

/* Checks that requests may have tools: the template's form of calls is known. name: begins the error. Errors:
 * _UNSUPPORTED. */
int moeflux_chat_check_tools(const struct moeflux_chat *c, const char *name, struct moeflux_err *e);
/* Returns the chat's model, the first one if it has several. */
struct moeflux_model *moeflux_chat_model(const struct moeflux_chat *c);
/* Returns the tokenizer of the chat's model; NULL: it has none. Borrowed. */
const struct moeflux_tokenizer *moeflux_chat_tokenizer(const struct moeflux_chat *c);

/* Returns how requests without fields are answered, for a model whose file says nothing else: temperature
 * 0.7, top_k 20, top_p 0.95, repeat_last_n 64, all else as in moeflux_sampler_defaults. */
struct moeflux_sampler_options moeflux_request_sampler_defaults(void);
/* Sets the options that `given` [MOEFLUX_N_SAMPLER_FIELDS] (NULL: none) does not mark to what a GGUF file
 * says (general.sampling.*), or a directory's generation_config.json (temperature, top_k, top_p, min_p,
 * repetition_penalty; do_sample false: temperature 0). Other models change nothing, nor do files that cannot
 * be read. As in llama.cpp, a negative temp or top_k is 0, and a penalty_last_n of -1 is the whole context.
 * Errors: _FORMAT (a value is no number or out of range; *failed is the option's index in the table). */
int moeflux_sampler_take_model(struct moeflux_sampler_options *o, const bool *given, const char *dir,
                               size_t *failed, struct moeflux_err *e);

enum {
    MOEFLUX_MAX_LOGPROBS = 20, /* likeliest tokens, in addition to the chosen one (top_logprobs) */
    MOEFLUX_MAX_DRAFT = 7,     /* tokens that are proposed at once (draft_max) */
};
/* Checks a value of the field draft: "off", "ngram", "mtp", "mtp:PATH", "auto" (NULL) or "file:PATH". Sets
 * drafter, drafter_file (borrows from the value) and drafter_auto of `o`, if it is not NULL, to what answers
 * with it need. name: begins the error. Errors: _USAGE. */
int moeflux_options_use_draft(struct moeflux_options *o, const char *name, const char *draft,
                              struct moeflux_err *e);

/* Creates a request without fields. The caller owns *out (moeflux_request_free). Errors: _MEMORY. */
int moeflux_request_new(struct moeflux_request **out, struct moeflux_err *e);
void moeflux_request_free(struct moeflux_request *r); /* NULL is legal */
/* Sets a field to a value, a JSON text; "null": the default again. The fields are those of
 * moeflux-batch(5) without `id`: messages or prompt; system, raw, tools, tool_choice,
 * chat_template_kwargs; temperature and the other options of sampling, seed, max_tokens, stop;
 * json_schema, grammar, response_format; reasoning_effort, think_budget, and others. The sampling's
 * defaults are those of the model's files (moeflux_sampler_take_model; one that is wrong is an error of
 * requests without the field), else the program's (temperature 0.7); without a seed a random one is drawn. A
 * request has one answer, so there is no field `n`. An answer checks the values. Errors: _USAGE (no such
 * field, or an argument is NULL), _FORMAT (the value is no JSON), _MEMORY; nothing changes. */
int moeflux_request_set(struct moeflux_request *r, const char *name, const char *json, struct moeflux_err *e);
/* Sets a field to a text, without quotes: prompt, system, grammar. Invalid UTF-8 becomes U+FFFD. Errors: as
 * above. */
int moeflux_request_set_text(struct moeflux_request *r, const char *name, const char *text,
                             struct moeflux_err *e);
/* Reads a file for the field tools, a list of functions, and checks it without a model. The caller frees *out
 * with free(); NULL after a failure. Errors: _IO, _FORMAT, _MEMORY. */
int moeflux_tools_read(const char *path, char **out, struct moeflux_err *e);
/* Appends a message to the field messages. role: "system", "user", "assistant" or "tool". Invalid UTF-8
 * becomes U+FFFD. Errors: _USAGE (messages was set to something else than an array), _MEMORY. */
int moeflux_request_say(struct moeflux_request *r, const char *role, const char *text, struct moeflux_err *e);
/* Does the same with a JSON object, such as {"role": "tool", "tool_call_id": "...", "content": "..."}.
 * Errors: also _FORMAT. */
int moeflux_request_add_message(struct moeflux_request *r, const char *json, struct moeflux_err *e);
/* Appends an answer as a message of the assistant, with its thinking and its complete calls. An answer
 * that continued the last message (continue_final_message) is joined to it, if it still is the last one.
 * Errors: as moeflux_request_say. */
int moeflux_request_add_answer(struct moeflux_request *r, const struct moeflux_answer *a,
                               struct moeflux_err *e);
/* Sets the prompt to n token ids, instead of the fields prompt and messages. n 0: to the fields again.
 * Copied. Errors: _USAGE (an argument is NULL), _MEMORY. */
int moeflux_request_set_ids(struct moeflux_request *r, const int32_t *ids, size_t n, struct moeflux_err *e);

/* A file with the state after a prompt, for later prompts with a common prefix. An answer loads it into the
 * session and, before the prompt's last token is evaluated, replaces it. */
struct moeflux_prompt_file {
    const char *path;
    bool read_only; /* the file is not written */
    enum moeflux_state_format format;
    struct moeflux_warning warning; /* gets how much was reused, or why the file is not used */
    struct moeflux_err err;         /* set: why it could not be written, which fails no answer */
};

/* How an answer is computed by itself: its prompt in whole chunks, without checkpoints for a next prompt, its
 * tokens never together with others'. Members may be NULL; what they point to is borrowed by the request. */
struct moeflux_alone {
    const struct moeflux_outputs *outputs; /* results of the prompt's evaluation */
    /* Receives the logits after the prompt, [vocab_size]. A negative result ends the answer with it. */
    int (*evaluated)(void *ctx, const float *logits, struct moeflux_err *e);
    void *ctx;
    struct moeflux_prompt_file *file;
};
/* Makes moeflux_chat_answer compute the answers to this request alone. how: copied; NULL: as others again. */
void moeflux_request_set_alone(struct moeflux_request *r, const struct moeflux_alone *how);

/* Ends the answer that is computed for this request, as MOEFLUX_STOP_INTERRUPTED: before the next token,
 * or at the next progress report of the prompt. Text that was computed already still arrives. An answer is
 * computed from the call of moeflux_chat_answer or moeflux_chat_answer_all to its return; at other times
 * this does nothing, so a late call does not end the next answer. May be called from any thread, from a
 * signal handler and from the callback of an answer. Jobs of a pool have moeflux_job_cancel. */
void moeflux_request_cancel(struct moeflux_request *r);

/* Makes the tokens of the request's prompt by the model's chat template. Returns their number; the first
 * `cap` of them are stored in ids. They are kept: a second call, or the next answer, does not make them again
 * unless a field was set. Errors: those of moeflux_chat_answer that concern the request. */
int64_t moeflux_chat_encode(struct moeflux_chat *c, struct moeflux_request *r, int32_t *ids, size_t cap,
                            struct moeflux_err *e);

/* A call of a tool. The strings end with a NUL. */
struct moeflux_call {
    const char *id;        /* the model's own, or "call_..." */
    const char *name;      /* the tool's */
    const char *arguments; /* a JSON object, or its beginning if is_cut; in a piece: what has come so far */
    bool is_cut;           /* the answer ended within the call */
};

enum moeflux_piece_kind {
    MOEFLUX_PIECE_TEXT,
    MOEFLUX_PIECE_THINKING,
    MOEFLUX_PIECE_CALL_BEGINS,    /* id and name of a call are known; no text */
    MOEFLUX_PIECE_CALL_ARGUMENTS, /* the text continues the arguments */
    MOEFLUX_PIECE_CALL_ENDS,      /* the call is complete, or is_cut; no text */
    MOEFLUX_PIECE_CALL_FAILS,     /* it is no call after all: its bytes follow as text; no text */
    MOEFLUX_PIECE_CONTROL,        /* a token of the template's marks, or the end; no text */
};

struct moeflux_logprob {
    int32_t id;  /* -1: there are no more */
    float value; /* natural logarithm of the token's probability, before the steps of sampling */
};

/* A part of an answer. Everything is borrowed during the callback. */
struct moeflux_piece {
    enum moeflux_piece_kind kind;
    const char *text;                       /* [len] bytes, whole characters, without a NUL at the end */
    size_t len;                             /* may be 0 */
    int32_t id;                             /* the token that was sampled; -1: none in this piece */
    uint32_t call_idx;                      /* number of the call, from 0; failed ones count */
    const struct moeflux_call *call;        /* NULL: the piece belongs to no call */
    const struct moeflux_logprob *logprobs; /* [1 + n_logprobs], that of `id` first; NULL: none asked for */
    uint32_t n_logprobs;                    /* likeliest tokens (top_logprobs) */
};

/* Answers a request. The prompt keeps what the session has of it already (moeflux_session_reuse). In a
 * conversation in one session, the new messages are evaluated. The last answer is evaluated again if the
 * template renders it in another way (many drop its thinking); with recurrent layers or windows, from the
 * checkpoint at the last prompt's end. The session's max_context bounds prompt and answer.
 * Afterwards the session has the tokens of both, except the answer's last ones, which were not evaluated.
 *
 * piece: receives the parts as they come, on this thread; false ends the answer as moeflux_request_cancel
 * does, and no piece follows. It must not call a function of the model, the session or the chat. NULL:
 * nothing is reported.
 *
 * The caller owns *out (moeflux_answer_free); out may be NULL. A cancelled answer is no failure, nor is one
 * that the model's progress callback ended. Errors leave the session usable:
 *   _USAGE, _FORMAT    a field of the request, named; the prompt has more tokens than the session holds; or
 *                      an argument is NULL
 *   _UNSUPPORTED       the chat template, or a schema, has something that this program cannot do
 *   others             those of moeflux_session_eval */
int moeflux_chat_answer(struct moeflux_chat *c, struct moeflux_session *s, struct moeflux_request *r,
                        bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                        struct moeflux_answer **out, struct moeflux_err *e);

/* One of several requests that are answered at the same time: arguments and results of
 * moeflux_chat_answer. */
struct moeflux_task {
    struct moeflux_session *session;
    struct moeflux_request *request;
    bool (*piece)(void *ctx, const struct moeflux_piece *p);
    void *ctx;
    struct moeflux_answer *answer; /* set: owned by the caller; NULL after a failure */
    struct moeflux_err err;        /* set: its code is MOEFLUX_OK or the failure's */
};
enum { MOEFLUX_MAX_TASKS = 64 };
/* Answers n requests, decoded together, on n threads that end with it. Sessions and requests must differ.
 * Callbacks come from these threads, one at a time. Returns how many failed. Errors: _USAGE (n is above
 * MOEFLUX_MAX_TASKS, or a session or request is NULL or occurs twice; nothing is answered). */
int moeflux_chat_answer_all(struct moeflux_chat *c, struct moeflux_task *tasks, uint32_t n,
                            struct moeflux_err *e);

enum moeflux_stop {
    MOEFLUX_STOP_EOS,         /* the model ended it */
    MOEFLUX_STOP_LENGTH,      /* max_tokens */
    MOEFLUX_STOP_CONTEXT,     /* the session is full */
    MOEFLUX_STOP_INTERRUPTED, /* cancelled */
    MOEFLUX_STOP_TEXT,        /* one of the texts in `stop` */
    MOEFLUX_STOP_CALLS,       /* the model ended it after at least one complete call */
};
/* Returns "eos", "length", "context", "interrupted", "stop" or "tool_calls"; "unknown" for other values. */
const char *moeflux_stop_name(enum moeflux_stop stop);

/* Pointers are borrowed until moeflux_answer_free. */
struct moeflux_answer_info {
    const char *text, *thinking; /* the whole of both, without calls; a NUL follows them */
    size_t text_len, thinking_len;
    const struct moeflux_call *calls; /* [n_calls] without failed ones */
    uint32_t n_calls;
    enum moeflux_stop stop;
    /* The one of `stop` that ended it; part of `text` only with include_stop_str_in_output. NULL: none. */
    const char *stop_text;
    /* The type of the first tool that was left out, because it is no function ("web_search"); NULL: none. */
    const char *skipped_tool;
    bool tools_are_unseen; /* the chat template left the request's tools out of the prompt */
    uint64_t seed;         /* the request's, or the one that was drawn */
    uint32_t n_prompt;     /* tokens of the prompt */
    uint32_t n_reused;     /* part of n_prompt that the session had */
    uint32_t n_tokens;     /* sampled tokens, also of the end and of a stop text */
    const int32_t *tokens; /* [n_tokens] */
    /* [n_tokens][1 + n_logprobs]: each token, then the likeliest ones; NULL: none asked for */
    const struct moeflux_logprob *logprobs;
    uint32_t n_logprobs;
    uint32_t n_decoded;     /* tokens that were evaluated in decode_ns */
    uint64_t n_drafted;     /* proposed tokens that were evaluated */
    uint64_t n_accepted;    /* part of n_drafted that is in the answer */
    uint64_t n_evaluations; /* evaluations of an answer with drafts; 0: without */
    uint64_t prompt_ns;     /* time in which the prompt was evaluated */
    uint64_t first_ns;      /* time from the beginning of that to the first token; 0: there is none */
    uint64_t decode_ns;     /* time from the first token to the end */
};
struct moeflux_answer_info moeflux_answer_get_info(const struct moeflux_answer *a);
void moeflux_answer_free(struct moeflux_answer *a); /* NULL is legal */

/* --- many answers at once --- */

/* Threads that answer requests, decoded together, in sequences of their own, and the requests that wait for
 * them. Any thread may call a pool's functions at any time, except where something else is said. A wait of
 * UINT32_MAX ms has no end. */
struct moeflux_pool;
/* Requests that a thread of the pool answers one after the other. Its functions are for one thread at a
 * time. */
struct moeflux_job;

enum moeflux_pool_reuse {
    /* Conversations: a prompt continues the longest prefix that a recent sequence has. */
    MOEFLUX_POOL_RECENT,
    /* Batches. One thread continues the last sequence, and takes the waiting job with the longest prefix of
     * it first. Several share the beginnings that prompts have in common, cut so that no result depends on
     * other jobs. A job that finds too little memory waits until fewer run. */
    MOEFLUX_POOL_BATCH,
};

enum { MOEFLUX_POOL_MAX_HELD = 256 };
/* Zero or NULL in any member means the default. `dir` must outlive the pool. */
struct moeflux_pool_options {
    enum moeflux_pool_reuse reuse;
    uint32_t parallel; /* answers at the same time, at least one for each model of the chat; 0: that */
    uint32_t context; /* tokens of each sequence; 0: the smaller of MOEFLUX_DEFAULT_CONTEXT and the model's */
    /* RECENT: requests of clients that may wait for a thread; 0: any number. The jobs of one moeflux_pool_add
     * that have the same priority are one request, which waits while any of them does. BATCH: jobs that may
     * wait; 0: MOEFLUX_POOL_MAX_HELD, which is also the most. */
    uint32_t most_waiting;
    /* BATCH: jobs begin in moeflux_pool_begin alone, so that the caller knows among which the pool
     * chooses. */
    bool holds;
    /* The rest: RECENT. */
    uint32_t sequences; /* sequences in memory, also those in use, at least `parallel`; 0: that */
    uint64_t bytes;     /* limit of the states of idle sequences; 0: none */
    const char *dir;    /* where evicted sequences are saved, and all when the pool ends; NULL: nowhere */
    uint64_t dir_bytes; /* limit of its files; the oldest are removed; 0: none */
    uint32_t dir_files; /* likewise their number */
    struct moeflux_warning warning;
    /* Called once on a thread of the pool when an answer fails because a device is lost. No further job
     * begins until moeflux_pool_restart. NULL: jobs go on, and those on the device fail. */
    void (*lost)(void *ctx, const struct moeflux_err *why);
    void *ctx;
};

/* Opens a pool of the chat's models and starts its threads. The caller owns *out (moeflux_pool_close); NULL
 * after a failure. Chat and models must outlive the pool; no evaluation is in flight while it opens, restarts
 * or ends. A model has one pool at a time, until moeflux_pool_end. Errors: _USAGE (a number is outside of its
 * range, or a model has a pool), _IO (the directory), _MEMORY, _NO_FIT, _DEVICE. */
int moeflux_pool_open(struct moeflux_pool **out, struct moeflux_chat *c, const struct moeflux_pool_options *o,
                      struct moeflux_err *e);
/* Ends the pool: jobs that wait fail with _INTERRUPTED and the text `why`, as later ones do; jobs that run
 * have grace_ms until they end as by moeflux_job_cancel. Then saves the sequences, if there is a directory,
 * and frees them. Jobs remain. A second call does nothing. NULL is legal. */
void moeflux_pool_end(struct moeflux_pool *p, const char *why, uint32_t grace_ms);
/* Ends the pool at once, and frees it. Free its jobs first. NULL is legal. */
void moeflux_pool_close(struct moeflux_pool *p);

struct moeflux_job_options {
    /* [n], n >= 1, without moeflux_alone, each in one job at a time. They are borrowed until
     * moeflux_job_free, and not changed. The first failure ends the job. */
    struct moeflux_request *const *requests;
    uint32_t n;
    int32_t priority;  /* RECENT: of the jobs that wait those with the lowest number begin first */
    bool keeps_pieces; /* moeflux_job_read passes them on */
    /* The callbacks come from a thread of the pool; idx is the number of the request. They may add jobs,
     * cancel and count, but call no other function of the pool, of the job or of what it uses. Each may be
     * NULL.
     * begin: the job begins, perhaps again (BATCH): what an earlier attempt has left is void, also the pieces
     * that were passed on already. A negative result, with `e` filled, fails the job.
     * piece: a part of an answer; false cancels the job.
     * ended: an answer is complete, or has failed with *err; it is borrowed during the call. May set *err,
     * which fails the job. */
    int (*begin)(void *ctx, struct moeflux_err *e);
    bool (*piece)(void *ctx, uint32_t idx, const struct moeflux_piece *p);
    void (*ended)(void *ctx, uint32_t idx, const struct moeflux_answer_info *a, struct moeflux_err *err);
    void *ctx;
};
/* Makes a job: reads the requests and makes the tokens of their prompts, on this thread. The caller owns *out
 * (moeflux_job_free); NULL after a failure. Errors: those of moeflux_chat_answer that concern the request. */
int moeflux_job_new(struct moeflux_job **out, struct moeflux_pool *p, const struct moeflux_job_options *o,
                    struct moeflux_err *e);
/* Adds n jobs, all or none; each is added once. Errors: _USAGE (one is NULL, another pool's, or was added
 * before), _NO_FIT (too many wait), _INTERRUPTED (the pool has ended). */
int moeflux_pool_add(struct moeflux_pool *p, struct moeflux_job *const *jobs, size_t n,
                     struct moeflux_err *e);
/* Gives jobs to the idle threads of a pool that holds them. */
void moeflux_pool_begin(struct moeflux_pool *p);
/* Waits up to `ms` until another number of jobs has ended than `seen`, at first 0. Returns the number. */
uint64_t moeflux_pool_await(struct moeflux_pool *p, uint64_t seen, uint32_t ms);
/* Waits up to `ms` until no job runs. Returns whether none does. */
bool moeflux_pool_is_drained(struct moeflux_pool *p, uint32_t ms);

/* Waits up to `ms` until the job has ended. Returns whether it has. */
bool moeflux_job_wait(struct moeflux_job *j, uint32_t ms);
/* Cancels a job: an answer ends as MOEFLUX_STOP_INTERRUPTED, before the next token. While its prompt is
 * evaluated, or when a job that waits has its turn, it fails with _INTERRUPTED instead. Any thread may call
 * it. */
void moeflux_job_cancel(struct moeflux_job *j);
/* Passes the kept pieces since the last call to `take`, on this thread; waits up to `ms` for one. Returns
 * whether the job has ended: there are no more. Calls of tools have their arguments in the texts alone. The
 * pieces of an attempt that is tried again (`begin`) are dropped if they were not read. */
bool moeflux_job_read(struct moeflux_job *j, uint32_t ms,
                      void (*take)(void *ctx, uint32_t idx, const struct moeflux_piece *p), void *ctx);
/* Returns 0, or the failure of a job that has ended. */
int moeflux_job_result(const struct moeflux_job *j, struct moeflux_err *e);
/* Takes the answer to request idx of a job that has ended; the caller owns it (moeflux_answer_free). NULL: it
 * was taken, there is none, or the job has `ended`. */
struct moeflux_answer *moeflux_job_take(struct moeflux_job *j, uint32_t idx);
/* Cancels the job, waits until no thread has it, and frees it. NULL is legal. */
void moeflux_job_free(struct moeflux_job *j);

/* Counts the jobs that wait and those that run. Never waits. */
void moeflux_pool_count(struct moeflux_pool *p, uint32_t *n_waiting, uint32_t *n_running);
struct moeflux_sequence_counts {
    uint32_t n, n_used;        /* sequences in memory; those of them in use */
    uint32_t n_saved;          /* files of evicted ones */
    uint64_t bytes, dir_bytes; /* bytes of states in memory, of files */
    uint64_t n_loads, n_saves; /* so far */
};
/* Sums what the models did, and counts the sequences; either may be NULL. Waits for an evaluation in flight,
 * and while a sequence is saved. */
void moeflux_pool_get_stats(struct moeflux_pool *p, struct moeflux_stats *models,
                            struct moeflux_sequence_counts *sequences);

/* After a loss, when no job runs (moeflux_pool_is_drained): ends the threads, so that nothing uses the models
 * any more. The sequences are freed, those on other devices saved. Jobs wait. Then close the models, open
 * them again with the same options, and give them to the chat (moeflux_chat_use_models). */
void moeflux_pool_pause(struct moeflux_pool *p);
/* Starts the threads again. Errors: those of moeflux_pool_open. */
int moeflux_pool_restart(struct moeflux_pool *p, struct moeflux_err *e);

/* --- conversations --- */

/* Questions and their answers in one session. An answer stays in the session as it was sampled, if the
 * template allows that, so a question costs no more than its own tokens. Used by one thread at a time; its
 * answers are computed alone (struct moeflux_alone). */
struct moeflux_conversation;

/* Creates an empty conversation, or one from a text of moeflux_conversation_write. name: begins the errors.
 * The caller owns *out (moeflux_conversation_free); NULL after a failure. Errors: _MEMORY, _FORMAT. */
int moeflux_conversation_new(struct moeflux_conversation **out, struct moeflux_err *e);
int moeflux_conversation_read(struct moeflux_conversation **out, const char *text, size_t len,
                              const char *name, struct moeflux_err *e);
void moeflux_conversation_free(struct moeflux_conversation *v); /* NULL is legal */

/* Lets a conversation be held in a session of the chat. Both must outlive it. What the session has of its
 * tokens, such as a loaded state, is reused. Errors: _USAGE (no tokenizer, a session of another model),
 * _NO_FIT (more tokens than the session holds), _FORMAT (not the model's tokens), and those of _use. */
int moeflux_conversation_attach(struct moeflux_conversation *v, struct moeflux_chat *c,
                                struct moeflux_session *s, const struct moeflux_request *r,
                                struct moeflux_err *e);
/* Sets how answers are computed from now on: by the request's fields except prompt, messages and tools.
 * Copied. Without a seed each answer draws one. Errors: those of moeflux_chat_answer that concern the
 * request; nothing changes. */
int moeflux_conversation_use(struct moeflux_conversation *v, const struct moeflux_request *r,
                             struct moeflux_err *e);

/* Appends a question; `instead`: in the place of the last one. It replaces a question without an answer.
 * Errors; nothing changes: _USAGE (not attached), _NO_FIT (the session is full), _UNSUPPORTED, _MEMORY. */
int moeflux_conversation_ask(struct moeflux_conversation *v, const char *text, bool instead,
                             struct moeflux_err *e);
/* Answers the last question. Arguments and errors: as moeflux_chat_answer, and _USAGE (no question without an
 * answer). An answer of no tokens, or a failure, leaves the question without one. */
int moeflux_conversation_answer(struct moeflux_conversation *v,
                                bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                                struct moeflux_answer **out, struct moeflux_err *e);
/* Goes on with the last answer, if it ended by MOEFLUX_STOP_LENGTH or _INTERRUPTED; *out has what is new.
 * Returns 1 if it did not: nothing changes. */
int moeflux_conversation_continue(struct moeflux_conversation *v,
                                  bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                                  struct moeflux_answer **out, struct moeflux_err *e);
/* Removes the last answer. The next one has another seed, the next number if the request has one. */
void moeflux_conversation_unanswer(struct moeflux_conversation *v);
/* Removes the last question and its answer. */
void moeflux_conversation_undo(struct moeflux_conversation *v);
/* Removes all turns, clears the session and sets the system text; NULL or "": none. Errors: _MEMORY,
 * _DEVICE. */
int moeflux_conversation_clear(struct moeflux_conversation *v, const char *system, struct moeflux_err *e);

struct moeflux_turn {
    const char *question;
    const char *thinking, *answer; /* NULL: none */
    enum moeflux_stop stop;        /* how the answer ended */
    uint32_t n_before, n_asked;    /* tokens before the question, and up to the answer's beginning */
};
/* Stores up to `cap` turns, whose strings are borrowed until the next call that changes the conversation.
 * Returns the number of turns. */
size_t moeflux_conversation_list(const struct moeflux_conversation *v, struct moeflux_turn *out, size_t cap);

struct moeflux_conversation_info { /* pointers are borrowed likewise */
    const char *system;            /* NULL: none */
    size_t n_turns;
    const int32_t *tokens; /* [n_tokens] of the system text and all turns */
    size_t n_tokens;
    const char *model;    /* directory of the model, if the conversation was read; else NULL */
    uint64_t fingerprint; /* likewise moeflux_model_fingerprint; else 0 */
};
struct moeflux_conversation_info moeflux_conversation_get_info(const struct moeflux_conversation *v);

/* Writes an attached conversation as a JSON text, without the session's state, which moeflux_session_save
 * saves. The caller frees *out with free(); NULL after a failure. Errors: _USAGE (not attached), _IO,
 * _MEMORY. */
int moeflux_conversation_write(const struct moeflux_conversation *v, char **out, struct moeflux_err *e);

/* --- grammars, for callers who sample the tokens themselves --- */

/* The beginning of a text that must fit a grammar. Used by one thread at a time. */
struct moeflux_grammar;
enum moeflux_grammar_kind {
    MOEFLUX_GRAMMAR_RULES,       /* rules as in moeflux-grammar(7) */
    MOEFLUX_GRAMMAR_JSON_SCHEMA, /* a JSON Schema */
    MOEFLUX_GRAMMAR_JSON_OBJECT, /* any JSON object; the text is not used and may be NULL */
    MOEFLUX_GRAMMAR_REGEX,       /* a regular expression that the whole text matches */
};
enum { MOEFLUX_MAX_GRAMMAR = 1 << 19 }; /* bytes of a grammar's rules */
/* Checks a grammar without a model, and makes its rules, for the field `grammar` of requests. text: [len]
 * bytes. name: begins the errors, such as a file. The caller frees *out with free(); NULL after a failure.
 * Errors: as moeflux_grammar_new. */
int moeflux_grammar_rules(char **out, enum moeflux_grammar_kind kind, const char *text, size_t len,
                          const char *name, struct moeflux_err *e);
/* Begins a text. The caller owns *out (moeflux_grammar_free), and frees it before the chat is closed. Errors:
 * _USAGE (an unknown kind, or no text), _FORMAT, _UNSUPPORTED (what is wrong with the grammar), _MEMORY. */
int moeflux_grammar_new(struct moeflux_grammar **out, struct moeflux_chat *c, enum moeflux_grammar_kind kind,
                        const char *text, struct moeflux_err *e);
void moeflux_grammar_free(struct moeflux_grammar *g); /* NULL is legal */
/* Sets *ids to the tokens that may come next, for moeflux_sampler_restrict; the tokens that end an answer are
 * among them where the text may end. Borrowed until the next call. Errors: _UNSUPPORTED (none may, or the
 * grammar is too ambiguous), _MEMORY. */
int moeflux_grammar_next(struct moeflux_grammar *g, const uint64_t **ids, struct moeflux_err *e);
/* Appends a token. Errors: _USAGE (it does not fit; nothing changes), _UNSUPPORTED, _MEMORY. */
int moeflux_grammar_accept(struct moeflux_grammar *g, int32_t id, struct moeflux_err *e);
/* Returns whether the text may end here. */
bool moeflux_grammar_may_end(const struct moeflux_grammar *g);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
