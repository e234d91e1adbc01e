#pragma once

/*
 * bench_json - writes the common parts of all results.
 */

#include <yyjson.h>
#include "cmd/bench_stats.h"

/* {"n", "mean", "sd", "min", "p50", "p90", "p99", "max"}, times @scale. */
void bench_json_summary(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key,
                        const struct summary *s, double scale);
/* Writes @d to @path ("-": stdout) and frees it. Returns an exit code. */
int bench_json_write(yyjson_mut_doc *d, const char *path);
