#pragma once

/*
 * crash_page - memory shared between front and worker that outlives the worker and tells which
 * requests it was computing. Before each launch and each grammar compilation the worker writes the
 * ids of its requests; the front reads them when the worker has died, and checks them. A request
 * that was present at two deaths runs alone; a third death fails it.
 */

#include <stdint.h>

#define CRASH_PAGE_MAX 1000
#define CRASH_PAGE_COMPILING_MAX 16
struct crash_page {
    /* counts steps, their operations and pieces of pictures, for the watchdog */
    uint64_t step;
    /* time of the launch; 0: neither a step nor a piece is running */
    int64_t started_ns;
    /* n: number of ids; loading: 1 while the model is being loaded */
    uint32_t n, loading;
    uint64_t ids[CRASH_PAGE_MAX];
    /* ids that wait for the grammar which the compile thread makes; written by that thread */
    uint32_t n_compiling;
    uint64_t compiling[CRASH_PAGE_COMPILING_MAX];
};
