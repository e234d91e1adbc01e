#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

#include "base/library.h"

static double (*cosine)(double);
static int (*missing)(void);

Test(library, opens_the_first_file_that_is_there) {
    static const char *const files[] = {"libno-such-library.so.9", "libm.so.6"};
    const struct library_call calls[] = {{"cos", &cosine, false}, {"no_such_call", &missing, true}};
    struct err err = {0};

    memset(&missing, 1, sizeof(missing));
    void *lib = library_open(files, 2, calls, 2, "option", "a test", &err);
    cr_assert(lib, "%s", err.message);
    cr_expect_float_eq(cosine(0), 1, 0);
    cr_expect_not(missing, "an optional call that is missing becomes NULL");
    dlclose(lib);
}

Test(library, says_what_is_missing) {
    static const char *const files[] = {"libno-such-library.so.9", "libnone-either.so.9"};
    static const char *const math[] = {"libm.so.6"};
    const struct library_call calls[] = {{"cos", &cosine, false},
                                         {"no_such_call", &missing, false}};
    struct err err = {0};

    cr_expect_not(library_open(files, 2, calls, 2, "option", "option: needs a package", &err));
    cr_expect(strstr(err.message, "option: needs a package: libno-such-library.so.9: "), "%s",
              err.message);
    cr_expect_str_eq(err.param, "option");
    cr_expect_not(library_open(math, 1, calls, 2, NULL, "mathematics", &err));
    cr_expect_str_eq(err.message, "mathematics: the library has no no_such_call");
}
