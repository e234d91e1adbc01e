#pragma once

/*
 * bench_record - adds the data that make a result comparable: the hardware, the commit, the
 * command, and the energy that the machine used.
 */

#include "cmd/bench_http.h"
#include "base/lib_types.h"

#define ENERGY_COUNTERS 17u

/* Energy counters in joules: RAPL's for the processor packages and, in the last place, the server's
 * for its devices. 0: there is none. */
struct energy {
    double joules[ENERGY_COUNTERS];
    double wraps[ENERGY_COUNTERS]; /* value at which a counter restarts from 0; 0: never */
    bool rapl_denied;              /* some counters are not readable for this user */
};

/* Reads the counters of this machine, and those of the server by @h, into @e. */
void energy_read(struct energy *e, struct bench_http *h);
/* Returns the joules between two readings, by the counters that both readings have; 0: there is
 * none. */
double energy_between(const struct energy *before, const struct energy *after);

/* Adds hardware, commit, command and date to @root, and the kinds of energy that were counted. The
 * value of --api-key is left out of the command. */
void record_json(yyjson_mut_doc *d, yyjson_mut_val *root, int argc, char *const *argv,
                 const struct energy *e);
