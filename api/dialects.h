#pragma once

/* dialects - the list of dialects. The first serves every path that belongs to no other dialect. */

#include "api/http/dialect.h"

#define DIALECTS(ROW)                                                                              \
    ROW(openai)                                                                                    \
    ROW(responses)                                                                                 \
    ROW(anthropic)                                                                                 \
    ROW(lmstudio)                                                                                  \
    ROW(ollama)                                                                                    \
    ROW(llamacpp)

#define DECLARE_DIALECT(name) extern const struct dialect name##_dialect;
DIALECTS(DECLARE_DIALECT)
#undef DECLARE_DIALECT
