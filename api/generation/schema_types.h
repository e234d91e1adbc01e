#pragma once

/*
 * schema_types - names of types in other spellings. Gemini's API, and programs that translate for
 * it, write the types of OpenAPI in capitals ("OBJECT", "STRING"), which JSON Schema does not know.
 */

#include "base/lib_types.h"

/* Writes the types of @schema, and of the schemas inside it, in the letters of JSON Schema: a type
 * that differs in them only is replaced in the document. */
void schema_types_spell(yyjson_val *schema);
