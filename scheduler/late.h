#pragma once

/*
 * late - masks that take too long for a step in which others wait.
 *
 * Most masks take some microseconds; one for which a token class has to be made takes milliseconds
 * (grammar/grammar.h). Such a mask is made by a thread on a copy of the request's place:
 *
 *     sealing a step ---> takes long: late_begin() ---> thread ---> late_waits() ends
 *          ^                  | its sample is not taken                   |
 *          '------------------+------- the row again, with the mask <-----'
 *
 * A mask depends on the tokens before it alone, so the request gets the same tokens, later; the
 * others of the step do not wait.
 */

#include <stdbool.h>
#include <stdint.h>

struct request;
struct constraint_state;

/* The tokens that may come next where @left may still come: their number, or a negative errno, as
 * constraint_mask_within(). Where there is no way to end in time, which only a request that was
 * resumed in the middle of one can be at, it is cut. */
int64_t late_compute(struct constraint_state *s, uint32_t left, uint32_t *bits);
/* Has a thread make the mask behind all tokens of @r, where none is being made. 0; -ENOMEM. */
int late_begin(struct request *r, uint32_t left);
/* Returns whether the mask is being made, or a row whose sample is not taken is under way. */
bool late_waits(const struct request *r);
/* Notes whether that row is under way: it was launched, or taken back. */
void late_set_row(struct request *r, bool under_way);
/* The mask behind all tokens of @r was made by a thread. */
bool late_has_mask(const struct request *r);
/* Copies the mask behind @n_tokens tokens to @bits, and its answer to *@n, when a thread has made
 * it. */
bool late_mask(const struct request *r, uint32_t n_tokens, uint32_t *bits, int64_t *n);
/* @r is about to be freed. Where a thread still needs its constraint, that is given back later. */
void late_leave(struct request *r);
