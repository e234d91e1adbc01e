#pragma once

/*
 * messages - a chat's messages and tools as the variables of a chat template: checked, parts of text
 * joined, arguments of past tool calls parsed, as templates expect them.
 */

#include "api/api.h"
#include "api/request.h"

/* A new document whose root is the object of variables. A bad message is a 400 with its place. */
int messages_vars(const struct request *r, const struct api_model *model, yyjson_doc **out,
                  struct err *err);
