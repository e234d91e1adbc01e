#pragma once

/* ctl_fetch - downloads one file from the hub into a folder and survives interruptions. The
 * downloaded bytes are in a hidden file beside the target, whose name contains the checksum, so
 * that a download is only continued with bytes of the same file. The complete file is renamed after
 * its checksum was verified. Two processes that fetch the same file take turns on its lock: the
 * second finds it complete. */

#include "cmd/ctl_hub.h"
#include "cmd/ctl_progress.h"

/* One file to be fetched; all that it points to outlives the calls. */
struct fetch {
    struct hub *hub;
    /* path on the hub, for hub_get() */
    const char *path;
    /* path of the complete file */
    const char *target;
    /* checksum; "": only the size is checked, and the download is not continued */
    const char *sha256;
    /* without a checksum: download it although a file of this size is there */
    bool anew;
    uint64_t size;
    /* number of successive attempts without data before it gives up */
    uint32_t n_tries;
    const volatile sig_atomic_t *stop;
    struct progress *progress;
};

enum { FETCH_INTERRUPTED = 130 }; /* exit code: `stop` was set */

/* Returns the number of bytes still to download; 0 if the target exists. */
uint64_t fetch_missing(const struct fetch *f);

/* Downloads the file. Returns an exit code (ctl.h), with the reason of a failure in @err. The
 * folder must exist. */
int fetch_file(const struct fetch *f, struct err *err);

/* Waits @ms; returns false if it was stopped. */
bool fetch_sleep(const volatile sig_atomic_t *stop, int64_t ms);

/* Writes the path of the hidden file that holds the checksum of @target once it is complete.
 * Returns false if the path is too long. */
bool fetch_sum_path(const char *target, char *out, size_t size);
