#pragma once

/* expected - the output that a client predicts, for speculation. */

#include "api/generation/prompt.h"

/* Tokenises job->request.expected into job->request.prediction. A prediction longer than any output
 * is ignored. Returns 0 or a negative errno. */
int expected_encode(struct prompt_job *job);
