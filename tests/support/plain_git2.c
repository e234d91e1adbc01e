/* The three functions of libgit2 that Criterion calls, in a library of the same name. Criterion
 * shows with them how two texts differ, which no test asks for. The real library brings 15 others,
 * among them Kerberos and libcrypto, and each test is a start of its program: loading them took
 * half of the page faults. */

#include "tests/support/plain_git2.h"

int git_libgit2_init(void) {
    return 1;
}

int git_libgit2_shutdown(void) {
    return 0;
}

int git_diff_buffers(void) {
    return 0;
}
