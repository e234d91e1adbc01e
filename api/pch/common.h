#pragma once

/*
 * common - headers that most files read. A build with -Og, which is quickstart's, compiles them
 * once for each library; others do not use this file, since compiler caches cannot take it.
 */

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if __has_include(<uv.h>)
#include <uv.h>
#endif
#if __has_include(<yyjson.h>)
#include <yyjson.h>
#endif
#include "base/buf.h"
#include "base/util.h"
