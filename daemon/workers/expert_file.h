#pragma once

/*
 * expert_file - statistics of a model's experts that its workers pass on (engine_opts.experts_fd):
 * how often each expert was picked and where it is stored, or the number of layers whose FFNs are
 * in host memory. While the model is served, the file is in memory; a copy in the service manager's
 * state folder stays for the next load.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define EXPERT_FILE_PATH 256u /* bytes of a path */

struct expert_save;

struct expert_file {
    /* a thread writes the copy, since a disk may be slow; this loop is told of its end */
    uv_loop_t *loop;
    /* copy that is being written, or NULL; is_stale: another one is wanted after it */
    struct expert_save *saving;
    bool is_stale;
    /* file in memory; 0: there is none */
    int fd;
    /* number of picks at the last copy */
    uint64_t n_kept;
    int64_t kept_ns;
    /* path of the copy */
    char path[EXPERT_FILE_PATH];
};

/* Makes a file in memory with the kept counts of the model with the fingerprint @print
 * (gguf_fingerprint()): on a thread of the pool, since a disk may be slow. Returns its descriptor,
 * or -1 after a failure, which is logged. */
int expert_file_read(const uint8_t print[16]);
/* Makes @f the file @fd of that model, which is taken over; -1: the model has none. */
void expert_file_set(struct expert_file *f, const uint8_t print[16], int fd);
/* Saves the file from time to time while a worker counts (@n_picks so far), so that a power cut
 * costs a few minutes of counts. */
void expert_file_save_due(struct expert_file *f, uint64_t n_picks, int64_t now_ns);
/* Begins to copy the file to the folder for state, if there is one. A failure is logged. */
void expert_file_save(struct expert_file *f);
/* Closes the file. A copy that is being written is completed. */
void expert_file_close(struct expert_file *f);
