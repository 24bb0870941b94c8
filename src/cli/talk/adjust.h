/* adjust.h - /set and /think: options that change within a conversation. */
#ifndef MOEFLUX_CLI_TALK_ADJUST_H
#define MOEFLUX_CLI_TALK_ADJUST_H

struct moeflux_err;
struct talk;

/* "NAME VALUE": sets an option of the sampler, or -n, --seed (-1: a random one for each answer),
 * --think-budget. "": prints them. Ollama's "parameter NAME VALUE", "think" and "nothink" do the same. A
 * fault is reported and changes nothing. Returns 0, or adjust_think's error. */
int adjust_set(struct talk *t, const char *argument, struct moeflux_err *e);

/* "on", "off", "auto" or an effort: how much answers think from now on. "": prints it. Returns 0, or an
 * error if the chat template cannot be used any more. */
int adjust_think(struct talk *t, const char *argument, struct moeflux_err *e);

#endif
