#pragma once

/* How often a test does the same once more: @all times, and under AddressSanitizer, which wants
 * each way gone once and takes ten times as long, @few. */
#ifdef __SANITIZE_ADDRESS__
#define FEWER(all, few) (few)
#else
#define FEWER(all, few) (all)
#endif
