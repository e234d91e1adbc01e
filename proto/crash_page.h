#pragma once

/*
 * crash_page - memory shared between front and worker that outlives the worker and tells which
 * requests it was computing. Before each launch and each grammar compilation the worker writes the
 * ids concerned; the front reads them when the worker is gone, and does not trust them. Ids present
 * in two deaths run alone; a third death fails that request.
 */

#include <stdint.h>

#define CRASH_PAGE_MAX 1000
#define CRASH_PAGE_COMPILING_MAX 16
struct crash_page {
    uint64_t step; /* incremented by steps, their ops and pieces of pictures: for the watchdog */
    int64_t started_ns;  /* time of the launch; 0: neither a step nor a piece is running */
    uint32_t n, loading; /* n: number of ids; loading: 1 while the model is being loaded */
    uint64_t ids[CRASH_PAGE_MAX];
    uint32_t n_compiling; /* written by the compile thread: ids that wait for its grammar */
    uint64_t compiling[CRASH_PAGE_COMPILING_MAX];
};
