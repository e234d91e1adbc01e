#pragma once

/* criterion - the assertions of the test support (tests/api/world.c) for a program without
 * Criterion: a failed assertion aborts. */

#include "tests/fuzz/fuzz.h"

#define cr_assert(condition, ...) FUZZ_ASSERT(condition)
#define cr_assert_eq(a, b, ...) FUZZ_ASSERT((a) == (b))
#define cr_assert_gt(a, b, ...) FUZZ_ASSERT((a) > (b))
#define cr_assert_neq(a, b, ...) FUZZ_ASSERT((a) != (b))
#define cr_assert_geq(a, b, ...) FUZZ_ASSERT((a) >= (b))
#define cr_assert_leq(a, b, ...) FUZZ_ASSERT((a) <= (b))
#define cr_assert_lt(a, b, ...) FUZZ_ASSERT((a) < (b))
#define cr_assert_not_null(a, ...) FUZZ_ASSERT((a) != NULL)
#define cr_expect(condition, ...) FUZZ_ASSERT(condition)
#define cr_expect_eq(a, b, ...) FUZZ_ASSERT((a) == (b))
#define cr_expect_neq(a, b, ...) FUZZ_ASSERT((a) != (b))
#define cr_skip(...) FUZZ_ASSERT(!"skipped")
#define cr_skip_test(...) FUZZ_ASSERT(!"skipped")
