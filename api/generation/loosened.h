#pragma once

/* loosened - tells what was left out of the schemas of a request's tools (loosen.h): a header of
 * the answer or a member of its first event, an event of the log, a line of `weftctl why`. */

#include <stddef.h>

#include "api/generation/loosen.h"

struct exchange;

/* Writes "TOOL#/POINTER, TOOL#/POINTER and 3 more" in printable ASCII, without ',' inside of a
 * place; other bytes are escaped as in a URI. Cuts between places. */
void loosened_text(const struct loosened_list *list, char *out, size_t size);
/* Adds @text to the answer of @x, in its head if that is to come, and logs the event. */
void loosened_report(struct exchange *x, const struct loosened_list *list, const char *text);
