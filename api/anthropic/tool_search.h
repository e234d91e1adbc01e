#pragma once

/* tool_search - the two searches among deferred tools that the Messages API offers to a model. */

#include "base/lib_types.h"

enum tool_search_kind { TOOL_SEARCH_REGEX, TOOL_SEARCH_BM25, TOOL_SEARCH_KINDS };

#define TOOL_SEARCH_MOST 5u /* tools of one result */

/* Names of the tools with which a model searches. */
extern const char *const tool_search_names[TOOL_SEARCH_KINDS];

/* Searches the names, descriptions and parameters of the functions in @tools (an array as a chat
 * has it) that have "defer_loading". Writes the names of those that match to @found: in the order
 * of @tools for a regular expression, best first for BM25. Returns their number; -EINVAL: @query is
 * not a valid pattern; -ETIME: the search took too long; -ENOMEM; -ECANCELED: the job of this
 * thread was abandoned. */
int tool_search(enum tool_search_kind kind, const char *query, yyjson_val *tools,
                yyjson_val *found[TOOL_SEARCH_MOST]);
