#pragma once

/*
 * late - makes masks that take too long for a step in which other requests wait.
 *
 * Most masks take some microseconds; one that needs a new token class takes milliseconds
 * (grammar/grammar.h). A thread makes such a mask on a copy of the constraint's state:
 *
 *     sealing a step ---> takes long: late_begin() ---> thread ---> late_waits() ends
 *          ^                  | its sample is discarded                   |
 *          '------------------+------- the row again, with the mask <-----'
 *
 * A mask depends only on the tokens before it. So the request gets the same tokens, only later, and
 * the other requests of the step do not wait.
 */

#include <stdbool.h>
#include <stdint.h>

struct request;
struct constraint_state;

/* Computes the mask of tokens that may come next if at most @left tokens may follow. Returns their
 * number or a negative errno, as constraint_mask_within(). Where the output cannot end in time,
 * which happens only after a request was resumed, the mask ignores the limit. */
int64_t late_compute(struct constraint_state *s, uint32_t left, uint32_t *bits);
/* Lets a thread make the mask behind all tokens of @r, unless one is being made. Returns 0 or
 * -ENOMEM. */
int late_begin(struct request *r, uint32_t left);
/* Returns whether a thread makes the mask, or a row of @r whose sample will be discarded is in
 * flight. */
bool late_waits(const struct request *r);
/* Notes whether the row whose sample is discarded is in flight: true when it is launched, false
 * when its step has ended. */
void late_set_row(struct request *r, bool under_way);
/* Returns whether a thread has made the mask behind all tokens of @r. */
bool late_has_mask(const struct request *r);
/* Copies the mask behind @n_tokens tokens to @bits and the result of late_compute() to *@n, and
 * returns true, if a thread has made it. */
bool late_mask(const struct request *r, uint32_t n_tokens, uint32_t *bits, int64_t *n);
/* Frees r->late, before @r is freed. A constraint that a thread still needs is released later. */
void late_release(struct request *r);
