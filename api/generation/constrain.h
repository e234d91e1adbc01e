#pragma once

/*
 * constrain - translates the form that a request requires of its output (output_spec.h) for the
 * worker: a grammar and its triggers (grammar/constraint.h). It is compiled here once, without a
 * vocabulary, so that a form that cannot be enforced gets a 400 that names the field, before the
 * request is queued.
 */

#include "api/generation/prompt.h"

/* Sets @job->request.grammar and .triggers, or leaves them empty; call it after the prompt is
 * rendered. 0, -ENOMEM, or a 400 in @job->err. With @quick also -EAGAIN: it would take long, and
 * nothing has changed. */
int constrain(struct prompt_job *job, bool quick);
