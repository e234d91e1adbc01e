#pragma once

/* kv_option - names of the formats of keys and values on a command line. */

#include <stdbool.h>
#include "engine/engine.h"

/* Reads one name for both, or that of keys, a comma and that of values; false for other texts. */
bool kv_option_read(const char *text, struct kv_formats *out);
