#pragma once

/*
 * replay_flight - reads a file of the flight recorder (proto/flight_file.h) and computes each of
 * its plans again, which must give the same decision.
 */

#include <stdbool.h>

struct flight_opts {
    const char *path;
    /* prints every request of every plan */
    bool verbose;
    /* only plans of this step, only this request; < 0: all */
    long step, request;
};

/* Returns true if the file at @path is a flight file that can be read. */
bool replay_flight_is(const char *path);
/* Returns 0: all plans are the same; 1: some differ; 2: the file cannot be used. */
int replay_flight(const struct flight_opts *o);
