#pragma once

/*
 * constrain - what a request wants of its output (output_spec.h) as the worker is told: a grammar
 * and its triggers (grammar/constraint.h). It is compiled here once, without a vocabulary, so that
 * what cannot be held is a 400 that names the field, before anything is queued.
 */

#include <stdatomic.h>
#include "api/generation/prompt.h"

#define CONSTRAIN_CHECKED 1024u

/* Grammars that were right and wrong, by hash. Any thread reads and writes. */
struct constrain_memory {
    _Atomic uint64_t checked[CONSTRAIN_CHECKED], refused[CONSTRAIN_CHECKED];
};

/* Sets @job->request.grammar and .triggers, or leaves them empty; after the prompt is rendered. 0,
 * -ENOMEM, or a 400 in @job->err. With @quick also -EAGAIN: it takes long, nothing has changed. */
int constrain(struct prompt_job *job, bool quick);
