#pragma once

/* Number of repetitions of a test: @all, or @few with -Dtest-cases=few and under AddressSanitizer,
 * which needs each path once and takes ten times as long. Programs with seeded bugs need all cases
 * to find each of them. */
#if (defined(__SANITIZE_ADDRESS__) || defined(WEFT_FEW_CASES)) && !defined(WEFT_ALL_CASES)
#define FEWER(all, few) (few)
#else
#define FEWER(all, few) (all)
#endif

/* FEWEST() runs all cases under AddressSanitizer, too, where no other build runs all of them. */
#if defined(WEFT_FEW_CASES) && !defined(WEFT_ALL_CASES)
#define FEWEST(all, few) (few)
#else
#define FEWEST(all, few) (all)
#endif
