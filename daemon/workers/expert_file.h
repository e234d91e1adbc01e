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

struct expert_save;

struct expert_file {
    /* threads of this loop write the copy, since a disk may be slow */
    uv_loop_t *loop;
    /* copy that is being written, or NULL; is_stale: another one is wanted after it */
    struct expert_save *saving;
    bool is_stale;
    /* file in memory; 0: there is none */
    int fd;
    /* fingerprint of the model */
    uint8_t print[16];
    /* number of picks at the last copy */
    uint64_t n_kept;
    int64_t kept_ns;
    char path[256];
};

/* Opens the file of the model with the fingerprint @print (gguf_fingerprint()) and reads the kept
 * counts, unless @f is already that file. Returns its descriptor, or -1 after a failure, which is
 * logged. */
int expert_file_open(struct expert_file *f, const uint8_t print[16]);
/* Saves the file from time to time while a worker counts (@n_picks so far), so that a power cut
 * costs a few minutes of counts. */
void expert_file_keep(struct expert_file *f, uint64_t n_picks, int64_t now_ns);
/* Begins to copy the file to the folder for state, if there is one. A failure is logged. */
void expert_file_save(struct expert_file *f);
/* Closes the file. A copy that is being written is completed. */
void expert_file_close(struct expert_file *f);
