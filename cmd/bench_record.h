#pragma once

/*
 * bench_record - the data that make a result comparable: the hardware, the commit, the command, and
 * the energy that the machine used.
 */

#include <yyjson.h>
#include "cmd/bench_http.h"

#define ENERGY_COUNTERS 17u

/* Energy counters in joules: RAPL's of the processor packages, and the devices' as the server tells
 * them, in the last place. 0: there is none. */
struct energy {
    double joules[ENERGY_COUNTERS];
    double wraps[ENERGY_COUNTERS]; /* where a counter begins again; 0: never */
    bool rapl_denied;              /* there are counters that this user cannot read */
};

/* Reads the counters of this machine, and those of the server by @h, into @e. */
void energy_read(struct energy *e, struct bench_http *h);
/* Returns the joules between two readings, of the counters that both have; 0: there is none. */
double energy_between(const struct energy *before, const struct energy *after);

/* Adds hardware, commit, command and date to @root, and which energy was counted. The value of
 * --api-key is left out of the command. */
void record_json(yyjson_mut_doc *d, yyjson_mut_val *root, int argc, char *const *argv,
                 const struct energy *e);
