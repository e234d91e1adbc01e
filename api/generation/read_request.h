#pragma once

/*
 * read_request - reads a body in OpenAI's form as the canonical request. Bodies of other dialects
 * are translated into that form first, so that types, ranges and messages exist once.
 */

#include "api/generation/gen_request.h"

struct model;

/* Reads @doc, a body with the fields of @known, which it takes over. @r is overwritten; it needs no
 * gen_request_deinit() after an error. On any thread. Returns 0, -ENOMEM, or a 400 (404 for an
 * unknown model) that names the field. */
int gen_request_read(struct gen_request *r, const struct model *m, enum field_set known,
                     yyjson_doc *doc, struct err *err);

/* Reads an array of at least one token id. Returns 0, -ENOMEM, or a 400 that names @param. */
int gen_request_ids(struct gen_request *r, const struct model *m, yyjson_val *array,
                    const char *param, int32_t **out, uint32_t *n, struct err *err);
