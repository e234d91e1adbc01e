#pragma once

#include "base/gguf.h"

/* Prints the known architectures nearest to that of @g. Returns an exit code. */
int gguf_nearest_print(const struct gguf *g, const char *path);
