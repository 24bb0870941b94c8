/* pool.c - many answers at once through libmoeflux: each line of stdin is a question, the answers come in the
 * order of the lines. What the questions have in common is evaluated once.
 *   cc pool.c $(pkg-config --cflags --libs moeflux) -o pool; ./pool MODEL_DIR [DEVICE [SEED]] < QUESTIONS */
#include <moeflux_chat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = MOEFLUX_POOL_MAX_HELD, LINE = 1 << 16 };

/* The first failure ends the program. */
static void check(int rc, const struct moeflux_err *e)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "pool: %s\n", e->text);
    exit(1);
}

int main(int argc, char **argv)
{
    const struct moeflux_pool_options options = {.reuse = MOEFLUX_POOL_BATCH, .parallel = 4};
    struct moeflux_model *model;
    struct moeflux_chat *chat;
    struct moeflux_pool *pool;
    struct moeflux_request *requests[MOST];
    struct moeflux_job *jobs[MOST];
    struct moeflux_err e = {0};
    char line[LINE];
    size_t n = 0;
    if (argc < 2)
        return fprintf(stderr, "usage: pool MODEL_DIR [DEVICE [SEED]]\n"), 2;
    check(moeflux_model_open_dir(&model, argv[1], argc > 2 ? argv[2] : NULL, &e), &e);
    check(moeflux_chat_open(&chat, model, &e), &e);
    check(moeflux_pool_open(&pool, chat, &options, &e), &e);
    for (; fgets(line, sizeof line, stdin); n++) {
        const struct moeflux_job_options of = {.requests = &requests[n], .n = 1};
        if (n == MOST || strlen(line) == LINE - 1)
            return fprintf(stderr, "pool: more than %d lines, or a line of %d bytes\n", MOST, LINE - 1), 1;
        line[strcspn(line, "\n")] = '\0';
        check(moeflux_request_new(&requests[n], &e), &e);
        if (argc > 3)
            check(moeflux_request_set(requests[n], "seed", argv[3], &e), &e);
        check(moeflux_request_say(requests[n], "user", line, &e), &e);
        check(moeflux_job_new(&jobs[n], pool, &of, &e), &e);
    }
    check(moeflux_pool_add(pool, jobs, n, &e), &e);
    for (size_t i = 0; i < n; i++) {
        moeflux_job_wait(jobs[i], UINT32_MAX);
        check(moeflux_job_result(jobs[i], &e), &e);
        struct moeflux_answer *answer = moeflux_job_take(jobs[i], 0);
        puts(moeflux_answer_get_info(answer).text);
        moeflux_answer_free(answer);
        moeflux_job_free(jobs[i]);
        moeflux_request_free(requests[i]);
    }
    moeflux_pool_close(pool);
    moeflux_chat_close(chat);
    moeflux_model_close(model);
}
