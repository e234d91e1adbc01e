#include <criterion/criterion.h>
#include "model.h"

Test(kv_pager, random_operations_agree_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= 2000; seed++)
        model_random(seed, 1000, NULL);
}

Test(kv_pager, a_pool_that_lives_long_agrees_with_the_naive_model) {
    for (uint64_t seed = 1; seed <= 8; seed++)
        model_random(~seed, 100000, NULL);
}
