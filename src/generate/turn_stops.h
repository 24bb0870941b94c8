/* turn_stops.h - where the next request of a conversation will part from this one. A template writes what
 * comes after a question in one way before the answer and in another when the answer is there, so the places
 * are found by asking it. */
#ifndef MOEFLUX_GENERATE_TURN_STOPS_H
#define MOEFLUX_GENERATE_TURN_STOPS_H

struct generator;
struct prefix_stops;
struct request;

/* r: encoded by g. Places that cannot be told are left out. */
void turn_stops_find(const struct request *r, struct generator *g, struct prefix_stops *st);

#endif
