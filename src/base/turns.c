#include "base/turns.h"

#include "base/err.h"

int turns_init(struct turns *t, struct moeflux_err *e)
{
    *t = (struct turns){0};
    if (pthread_mutex_init(&t->lock, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    if (pthread_cond_init(&t->changed, NULL) != 0) {
        pthread_mutex_destroy(&t->lock);
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    }
    return 0;
}

void turns_free(struct turns *t)
{
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
}

void turns_begin(struct turns *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t own = t->next++;
    while (t->now != own)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void turns_end(struct turns *t)
{
    pthread_mutex_lock(&t->lock);
    t->now++;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

bool turns_are_wanted(struct turns *t)
{
    pthread_mutex_lock(&t->lock);
    bool are = t->next > t->now + 1;
    pthread_mutex_unlock(&t->lock);
    return are;
}
