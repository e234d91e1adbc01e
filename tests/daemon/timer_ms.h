#pragma once

/* timer_ms - times with which timers are started, whatever has passed since: test_workers.c
 * replaces uv_timer_start(). */

#include <uv.h>

/* Returns the ms with which @t was last started. */
uint64_t timer_ms(const uv_timer_t *t);
