#pragma once

/*
 * bench_json - writes the parts that all results have in common.
 */

#include "base/lib_types.h"
#include "cmd/bench_stats.h"

/* Adds {"n", "mean", "sd", "min", "p50", "p90", "p99", "max"}; values are multiplied by @scale. */
void bench_json_summary(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key,
                        const struct summary *s, double scale);
/* Writes @d to @path ("-": stdout) and frees it. Returns an exit code. */
int bench_json_write(yyjson_mut_doc *d, const char *path);
