#pragma once

/*
 * expert_file - what a model's workers leave each other of its experts (engine_opts.experts_fd):
 * how often they were picked, and where they lie, or how many layers' FFNs the host has. While the
 * model is served that is a file in memory; in the service manager's folder for state a copy of it
 * stays for the next load.
 */

#include "base/gguf.h"

struct expert_file {
    int fd;            /* in memory; 0: there is none */
    uint8_t print[16]; /* fingerprint of the model */
    uint64_t n_kept;   /* picks that were counted when it was kept last */
    int64_t kept_ns;
    char path[256];
};

/* Opens the file of @model and reads the counts that were kept, unless @f is that file already.
 * Returns its descriptor; -1: a failure, which is logged. */
int expert_file_open(struct expert_file *f, const struct gguf *model);
/* Saves the file from time to time while a worker counts (@n_picks so far), so that a power cut
 * costs a few minutes of counts. */
void expert_file_keep(struct expert_file *f, uint64_t n_picks, int64_t now_ns);
/* Copies the file to the folder for state, if there is one. A failure is logged. */
void expert_file_save(const struct expert_file *f);
void expert_file_close(struct expert_file *f);
