#pragma once

/*
 * size - divides memory: pages, states, snapshots and the longest context of a model on a backend,
 * and the experts that stay in host memory. Private to engine/; fit.h has the arithmetic.
 */

#include "engine/backend.h"
#include "engine/fit.h"
#include "engine/place.h"

/* A model on a backend, and the results. Pointers are the caller's. */
struct sizing {
    /* model_join_windows() may be called on it */
    struct model *model;
    const struct be_ops *ops;
    struct picks *picks;
    /* a number of pages or states, or max_context, that is 0 is chosen here */
    struct engine_opts *opts;
    /* zeroed by the caller; gets sizes of pages and states, windows and slots */
    struct engine_info *info;
    /* lines for the log about windows (note) and about experts (moved) */
    char *note, *moved;
    /* sizes of @note and @moved */
    size_t n_note, n_moved;
    /* output: snapshots are in host memory beside a device */
    bool host_snapshots;
};

/* Fills in the sizes that the options leave open. Returns 0, or with @err: -ENOMEM if memory is too
 * small, -EINVAL for options that the model or the backend cannot meet. */
int size_memory(struct sizing *z, struct err *err);
/* Checks that weights and KV memory fit this machine; a device checks its own memory. Returns 0 or
 * -ENOMEM with @err. */
int size_check(const struct sizing *z, struct err *err);
/* Returns the bytes of all pages, states and snapshots, in the device's and the host's memory. */
uint64_t size_kv_bytes(const struct engine_opts *o, const struct engine_info *i);
