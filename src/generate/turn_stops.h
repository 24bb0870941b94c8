/* turn_stops.h - positions where the next request of a conversation will differ from this one. A template
 * may write the end of a question in another way once it has an answer, so the positions are found by
 * rendering likely next requests. */
#ifndef MOEFLUX_GENERATE_TURN_STOPS_H
#define MOEFLUX_GENERATE_TURN_STOPS_H

struct generator;
struct prefix_cuts;
struct prefix_stops;
struct request;

/* Fills `st` with the positions. r: encoded by g. Positions that cannot be found are left out. */
void turn_stops_find(const struct request *r, struct generator *g, struct prefix_stops *st);

/* Fills `cuts` with the ends of what other requests may begin with, too: the system text with the tools,
 * and all that comes before the last question, such as examples; of a raw prompt all before its last
 * paragraph, which follows a blank line. It depends on the request alone. r: encoded by g. */
void turn_stops_find_cuts(const struct request *r, struct generator *g, struct prefix_cuts *cuts);

/* Fills `cuts` for a server, which knows the stops `st`: the end of the system text with the tools, or what
 * turn_stops_find_cuts finds in a raw prompt. */
void turn_stops_cut(const struct request *r, struct generator *g, const struct prefix_stops *st,
                    struct prefix_cuts *cuts);

#endif
