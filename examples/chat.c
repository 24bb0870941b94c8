/* chat.c - a conversation through libmoeflux: each line of stdin is a question, the answers appear as they
 * come. A conversation stays in one session, which keeps what a new prompt has in common with the last one.
 *   cc chat.c $(pkg-config --cflags --libs moeflux) -o chat
 *   ./chat MODEL_DIR [DEVICE [SEED]] */
#include <moeflux_chat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 4096, LINE = 1 << 16 };

/* The first failure ends the program. */
static void check(int rc, const struct moeflux_err *e)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "chat: %s\n", e->text);
    exit(1);
}

static bool show(void *ctx, const struct moeflux_piece *p)
{
    (void)ctx;
    if (p->kind == MOEFLUX_PIECE_TEXT)
        fwrite(p->text, 1, p->len, stdout);
    return fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    struct moeflux_model *model;
    struct moeflux_chat *chat;
    struct moeflux_session *session;
    struct moeflux_request *request;
    struct moeflux_answer *answer;
    struct moeflux_err e = {0};
    char line[LINE];
    if (argc < 2)
        return fprintf(stderr, "usage: chat MODEL_DIR [DEVICE [SEED]]\n"), 2;
    check(moeflux_model_open_dir(&model, argv[1], argc > 2 ? argv[2] : NULL, &e), &e);
    check(moeflux_chat_open(&chat, model, &e), &e);
    check(moeflux_session_new(&session, model, CONTEXT, &e), &e);
    check(moeflux_request_new(&request, &e), &e);
    if (argc > 3)
        check(moeflux_request_set(request, "seed", argv[3], &e), &e);
    while (fgets(line, sizeof line, stdin)) {
        if (strlen(line) == LINE - 1)
            return fprintf(stderr, "chat: a line of more than %d bytes\n", LINE - 2), 1;
        line[strcspn(line, "\n")] = '\0';
        check(moeflux_request_say(request, "user", line, &e), &e);
        check(moeflux_chat_answer(chat, session, request, show, NULL, &answer, &e), &e);
        check(moeflux_request_add_answer(request, answer, &e), &e);
        moeflux_answer_free(answer);
        putchar('\n');
    }
    moeflux_request_free(request);
    moeflux_session_free(session);
    moeflux_chat_close(chat);
    moeflux_model_close(model);
}
