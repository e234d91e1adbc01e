#pragma once

/*
 * launches - records the launches of a step, so that they can be listed or repeated. A weft-cuda.so
 * that is linked with launches.c has the runtime's table behind one that records; programs find its
 * state by dlsym("weft_launches"). It is never part of an installed module.
 */

#include "engine/cuda/cuda_api.h"

#define LAUNCHES_MAX 4096u
#define LAUNCH_ARGS 1024u

struct launch_record {
    char name[64];
    const void *kernel;
    uint32_t grid_x, grid_y, n_threads, shared;
    /* registers of a thread; 0: not known */
    uint32_t n_registers;
    /* enum launch_how, as a sum */
    uint32_t how;
    /* Of products: rows of activations, columns, blocks that share the columns of a panel, bytes of
     * weights, and bytes that blocks read in all, which pass through the L2 cache. */
    uint32_t n_rows, n_in, n_splits;
    uint64_t weight_bytes, read_bytes;
    /* bytes of the next product that it prefetches */
    uint64_t ahead_bytes;
    /* Of attention (launch_items.h): items for each key head, most bytes of keys and values that
     * one reads, and bytes that come from memory; read_bytes as of products. Tiles of keys that
     * blocks compute: of the item with the most, and of all items and key heads. */
    uint32_t n_items, item_tiles;
    uint64_t item_bytes, memory_bytes, n_tiles;
    _Alignas(16) uint8_t args[LAUNCH_ARGS];
};

struct launches {
    /* launches are recorded */
    bool on;
    /* n: recorded since `on` was set; more than LAUNCHES_MAX are only counted */
    uint32_t n;
    struct launch_record record[LAUNCHES_MAX];
    /* of the last launch */
    void *stream;
    /* the runtime's table, which does not record */
    const struct cuda_api *api;
};

extern struct launches weft_launches;

/* Describes a kernel: its name, the size of its argument and its registers (0: not known). */
void launch_describe(const void *kernel, char name[64], size_t *args_size, uint32_t *n_registers);
/* Returns the runtime's own table: cuda_api() of a file compiled with -Dcuda_api=runtime_api. */
const struct cuda_api *runtime_api(void);
