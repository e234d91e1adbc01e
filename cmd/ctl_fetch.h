#pragma once

/* ctl_fetch - downloads one file from the hub into a folder and survives interruptions. The bytes
 * so far lie in a hidden file beside the target whose name holds the checksum, so that a download
 * is only continued with bytes of the same file. The complete file is renamed after its checksum
 * was verified. Two processes that fetch the same file take turns on its lock: the second finds it
 * complete. */

#include "cmd/ctl_hub.h"
#include "cmd/ctl_progress.h"

/* One file to be fetched; all that it points to outlives the calls. */
struct fetch {
    struct hub *hub;
    const char *path;   /* for hub_get() */
    const char *target; /* path of the complete file */
    const char *sha256; /* ""; then only its size is checked, and it is not continued */
    uint64_t size;
    uint32_t n_tries; /* attempts in a row that bring nothing */
    const volatile sig_atomic_t *stop;
    struct progress *progress;
};

enum { FETCH_INTERRUPTED = 130 }; /* an exit code: `stop` was set */

/* Bytes that are still to be loaded: 0 when the target is there. */
uint64_t fetch_missing(const struct fetch *f);

/* An exit code (ctl.h), with @err saying why not. The folder must be there. */
int fetch_file(const struct fetch *f, struct err *err);

/* Waits, unless stopped: then false. */
bool fetch_sleep(const volatile sig_atomic_t *stop, int64_t ms);

/* Returns the hidden file that holds the checksum of @target once it is complete. False: too
 * long. */
bool fetch_sum_path(const char *target, char *out, size_t size);
