#pragma once

/* kv_option - reads names of the formats of keys and values on a command line. */

#include <stdbool.h>

#include "engine/engine.h"

/* Reads one name for both, or the name for keys, a comma and the name for values. Returns false for
 * other texts. */
bool kv_option_read(const char *text, struct kv_formats *out);
