/* Start of a process of the daemon: flags, cores, threads. Lines of the audit log. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/util.h"
#include "daemon/front/audit.h"
#include "daemon/front/process.h"

Test(process, a_flag_is_taken_from_the_arguments) {
    char *argv[] = {"--worker", "a", "--worker", "b", "--worker", NULL};
    int argc = 5;

    cr_expect_not(process_consume_flag(&argc, argv, "--work"));
    cr_expect_eq(argc, 5);
    cr_expect(process_consume_flag(&argc, argv, "--worker"));
    cr_expect_eq(argc, 4);
    cr_expect_str_eq(argv[0], "--worker", "the program's name is no flag");
    cr_expect_str_eq(argv[1], "a");
    cr_expect_str_eq(argv[2], "b");
    cr_expect_str_eq(argv[3], "--worker");
    cr_expect(argv[4] == NULL);
    cr_expect(process_consume_flag(&argc, argv, "--worker"));
    cr_expect(argc == 3 && argv[3] == NULL);
    cr_expect_not(process_consume_flag(&argc, argv, "--worker"));
    cr_expect_eq(argc, 3);
}

/* The hard limit stays, so that an operator can allow a core; with a limit of 0 Linux would still
 * pass the core to a program. */
Test(process, no_core_is_written) {
    struct rlimit core;

    cr_assert_eq(getrlimit(RLIMIT_CORE, &core), 0);
    core = (struct rlimit){1000, 1000};
    if (setrlimit(RLIMIT_CORE, &core) < 0) /* only root may raise it */
        getrlimit(RLIMIT_CORE, &core);
    rlim_t most = core.rlim_max;
    core.rlim_cur = most;
    cr_assert_eq(setrlimit(RLIMIT_CORE, &core), 0);
    process_forbid_cores();
    cr_assert_eq(getrlimit(RLIMIT_CORE, &core), 0);
    cr_expect_eq(core.rlim_cur, most > 1 ? 1 : most);
    cr_expect_eq(core.rlim_max, most);
    core.rlim_cur = core.rlim_max = 0;
    cr_assert_eq(setrlimit(RLIMIT_CORE, &core), 0);
    process_forbid_cores();
    cr_assert_eq(getrlimit(RLIMIT_CORE, &core), 0);
    cr_expect_eq(core.rlim_cur, 0);
}

/* Root has no limit on threads. */
Test(process, a_limit_on_threads_is_an_error) {
    struct rlimit before, one;

    cr_assert(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
    cr_assert_eq(getrlimit(RLIMIT_NPROC, &before), 0);
    one = (struct rlimit){1, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NPROC, &one), 0);
    cr_expect_eq(process_make_ready(), -EAGAIN);
    setrlimit(RLIMIT_NPROC, &before); /* the leak sanitizer starts a thread at the end */
    cr_expect_eq(process_make_ready(), 0, "what was missing is made");
}

static void *make_ready(void *arg) {
    *(int *)arg = process_make_ready();
    return NULL;
}

/* A stack that cannot grow later ends the process. */
Test(process, its_stack_is_there) {
    enum { PAGE = 4096, PAGES = 256 };
    static unsigned char there[PAGES];
    size_t bytes = (size_t)PAGES * PAGE;
    pthread_attr_t attr;
    pthread_t thread;
    int r = 1, n = 0;

    if (sysconf(_SC_PAGESIZE) != PAGE)
        cr_skip_test("the stack has pages of another size");
    void *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(stack != MAP_FAILED);
    madvise(stack, bytes, MADV_NOHUGEPAGE);
    cr_assert_eq(pthread_attr_init(&attr), 0);
    cr_assert_eq(pthread_attr_setstack(&attr, stack, bytes), 0);
    cr_assert_eq(pthread_create(&thread, &attr, make_ready, &r), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    cr_expect_eq(r, 0);
    cr_assert_eq(mincore(stack, bytes, there), 0);
    for (int i = 0; i < PAGES; i++)
        n += there[i] & 1;
    cr_expect_geq(n, 64, "%d pages", n);
    munmap(stack, bytes);
}

Test(process, an_error_begins_with_its_option) {
    static const struct {
        int r;
        const char *message, *want;
    } cases[] = {
        {0, "it is old", "it is old"},
        {-EINVAL, "line 3", "api-keys: line 3"},
        {-EINVAL, "api-keys: line 3", "api-keys: line 3"},
        {-ENOENT, "", "api-keys: No such file or directory"},
        {0, "", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool changed = strcmp(cases[i].message, cases[i].want) != 0;
        struct err err = {.status = 9};

        snprintf(err.message, sizeof(err.message), "%s", cases[i].message);
        cr_expect_eq(process_name_key(cases[i].r, "api-keys", &err), cases[i].r);
        cr_expect_str_eq(err.message, cases[i].want);
        cr_expect_eq(err.status, changed ? 0 : 9);
        if (changed)
            cr_expect_str_eq(err.param, "api-keys");
    }
}

/* ---- the audit log ---- */

static char line[1000];
static int saved;
static FILE *log_file;

static void listen_to_log(void) {
    log_file = tmpfile();
    saved = dup(STDERR_FILENO);
    cr_assert(log_file && dup2(fileno(log_file), STDERR_FILENO) >= 0);
}

/* Returns the line that was logged since listen_to_log(), from its event on; "" if there is
 * none. */
static const char *logged(const char *event) {
    *line = 0;
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(log_file);
    char *got = fgets(line, sizeof(line), log_file);
    fclose(log_file);
    line[strcspn(line, "\n")] = 0;
    got = got ? strstr(line, event) : NULL;
    return got ? got : line;
}

Test(audit, who_did_what_and_how_it_ended) {
    struct err err = {0};

    listen_to_log();
    cr_expect_eq(audit_admin("uid=7", "swap", "a b", "/c", 0, &err), 0);
    cr_expect_str_eq(logged("audit"), R"(audit action=swap target="a b" detail="/c" by=admin )"
                                      R"(client=uid=7 result=accepted reason="")");
    err_set(&err, 409, NULL, "it is busy");
    listen_to_log();
    cr_expect_eq(audit_admin("uid=7", "unload", NULL, NULL, -EINVAL, &err), -EINVAL);
    cr_expect_str_eq(logged("audit"), R"(audit action=unload target="" detail="" by=admin )"
                                      R"(client=uid=7 result=refused reason="it is busy")");
    err = (struct err){0};
    listen_to_log();
    cr_expect_eq(audit_admin("uid=7", "unload", NULL, NULL, -ENOMEM, &err), -ENOMEM);
    cr_expect_str_eq(logged("audit"), R"(audit action=unload target="" detail="" by=admin )"
                                      R"(client=uid=7 result=refused )"
                                      R"(reason="Cannot allocate memory")");
    listen_to_log();
    audit_signal("reload");
    cr_expect_str_eq(logged("audit"), "audit action=reload by=signal result=accepted");
}

Test(audit, keys_that_every_user_can_read_are_told_of) {
    char path[] = "/tmp/weft-keys-XXXXXX";
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    fchmod(fd, 0664);
    listen_to_log();
    audit_key_file(path);
    char want[200];
    snprintf(want, sizeof(want),
             R"(keys_readable path="%s" mode=0664 reason="every user can read it: chmod o= FILE")",
             path);
    cr_expect_str_eq(logged("keys_readable"), want);
    fchmod(fd, 0660);
    listen_to_log();
    audit_key_file(path);
    cr_expect_str_eq(logged("keys_readable"), "");
    unlink(path);
    close(fd);
    listen_to_log();
    audit_key_file(path);
    audit_key_file("");
    cr_expect_str_eq(logged("keys_readable"), "");
}
