#pragma once

/*
 * template_variables - what a chat template is told besides the messages and tools: whether and how
 * hard the model thinks, whether thoughts of earlier turns stay, today's date, the form of the
 * answer, and the client's own variables (chat_template_kwargs), which take precedence.
 */

#include "api/api.h"
#include "api/generation/family.h"
#include "api/generation/gen_request.h"
#include "api/http/json_build.h"

/* Adds the variables of request @r to the object @root of @doc. */
void template_variables_put(yyjson_mut_doc *doc, yyjson_mut_val *root, const struct gen_request *r,
                            const struct api_model *model, const struct family *family);
