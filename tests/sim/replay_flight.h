#pragma once

/*
 * replay_flight - a file of the flight recorder (proto/flight_file.h): each of its plans is made
 * again and must be what it was.
 */

#include <stdbool.h>

struct flight_opts {
    const char *path;
    bool verbose; /* every request of every plan */
    /* < 0: all; else only plans of this step, this request. */
    long step, request;
};

/* Whether the file at @path is such a file; false: something else, or it cannot be read. */
bool replay_flight_is(const char *path);
/* 0: all plans are what they were; 1: some are not; 2: nothing could be made of the file. */
int replay_flight(const struct flight_opts *o);
