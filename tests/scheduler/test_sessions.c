#include <criterion/criterion.h>
#include <stdlib.h>

#include "scheduler/sessions.h"

static struct sessions s;

static void set_up(void) {
    sessions_init(&s);
}

static void tear_down(void) {
    sessions_deinit(&s);
}

TestSuite(sessions, .init = set_up, .fini = tear_down);

Test(sessions, a_session_is_found_again) {
    cr_expect_null(sessions_find(&s, 7));
    struct session *x = sessions_use(&s, 7);
    cr_expect_eq(x->n_output, 0);
    x->n_output = 5;
    cr_expect_eq(sessions_find(&s, 7), x);
    cr_expect_eq(sessions_use(&s, 7)->n_output, 5);
}

Test(sessions, zero_is_none) {
    cr_expect_null(sessions_use(&s, 0));
    cr_expect_null(sessions_find(&s, 0));
}

Test(sessions, the_least_recently_used_is_forgotten_and_what_it_owned_freed) {
    sessions_use(&s, 1)->done.hash = malloc(8);
    for (uint64_t id = 2; sessions_find(&s, 1); id++) {
        cr_assert_leq(id, 2 * SESSIONS_MAX * SESSIONS_WAYS);
        sessions_use(&s, id);
    }
    cr_expect_null(sessions_use(&s, 1)->done.hash);
}

Test(sessions, a_session_in_use_outlives_any_number_of_new_ones) {
    sessions_use(&s, 1)->n_output = 5;
    for (uint64_t id = 2; id < 100000; id++) {
        sessions_use(&s, id);
        cr_assert_eq(sessions_use(&s, 1)->n_output, 5);
    }
}

Test(sessions, each_id_stands_in_the_table_once) {
    for (uint64_t id = 1; id < 20000; id++) {
        sessions_use(&s, id % 1500 + 1);
        sessions_use(&s, id);
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        cr_assert_neq(s.id[i], 0, "a place stays empty");
        cr_assert_eq(sessions_find(&s, s.id[i]), &s.at[i]);
    }
}
