#include <criterion/criterion.h>
#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define TESTS_MAX 1024
#define SUITES_MAX 32
#define SKIPPED 77 /* exit status of a child whose test skips itself */
#define FAILED 1
#define USAGE 64

static struct plain_test tests[TESTS_MAX];
static struct {
    const char *name;
    struct plain_options options;
} suites[SUITES_MAX];
static unsigned n_tests, n_suites;
static atomic_bool has_failed; /* set in the child that runs the test */
/* Result of a child for the process that waits for it. */
static struct told {
    /* the test ended by its last line or an assertion; exit() elsewhere is a failure */
    bool ended;
    char why_skipped[200];
} * told;
static const char *filter = "*"; /* pattern of "suite/test" */
static const char *file;         /* name of the source whose tests run; NULL: all run */
static bool fails_fast, lists;

void plain_add_test(const struct plain_test *t) {
    if (n_tests == TESTS_MAX)
        abort();
    tests[n_tests++] = *t;
}

void plain_add_suite(const char *name, struct plain_options o) {
    if (n_suites == SUITES_MAX)
        abort();
    suites[n_suites].name = name;
    suites[n_suites++].options = o;
}

/* Writes one line of TAP's comments. */
static void say(const char *format, va_list args) {
    char text[4096];

    vsnprintf(text, sizeof(text), format, args);
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    printf("# %s\n", text);
}

void plain_log(const char *format, ...) {
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
}

void plain_fail(bool fatal, const char *file, int line, const char *text, const char *format, ...) {
    va_list args;

    has_failed = true;
    plain_log("%s:%d: %s", file, line, text);
    va_start(args, format);
    if (*format)
        say(format, args);
    va_end(args);
    if (fatal) {
        told->ended = true;
        fflush(NULL);
        _exit(FAILED);
    }
}

void plain_skip(const char *format, ...) {
    va_list args;

    va_start(args, format);
    vsnprintf(told->why_skipped, sizeof(told->why_skipped), format, args);
    va_end(args);
    fflush(NULL);
    _exit(SKIPPED);
}

static const struct plain_options *suite_of(const struct plain_test *t) {
    static const struct plain_options none;

    for (unsigned i = 0; i < n_suites; i++)
        if (strcmp(suites[i].name, t->suite) == 0)
            return &suites[i].options;
    return &none;
}

/* Runs @t in this process, which ends. */
static void run(const struct plain_test *t, void *arg) {
    const struct plain_options *s = suite_of(t);
    void (*init)(void) = t->options.init ? t->options.init : s->init;
    void (*fini)(void) = t->options.fini ? t->options.fini : s->fini;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a program that is stopped leaves no test behind */
    alarm(t->options.timeout ? t->options.timeout : s->timeout);
    if (init)
        init();
    if (t->run)
        t->run();
    else
        t->run_with(arg);
    if (fini)
        fini();
    told->ended = true;
    exit(has_failed ? FAILED : 0);
}

/* Writes the CPU time of a test that took a second or more. */
static void tell_cost(const struct rusage *used) {
    double s = (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
               (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;

    if (s >= 1)
        plain_log("%.1f CPU seconds", s);
}

/* Runs @t in a child and writes its line, numbered @n. Returns whether it passed or was skipped. */
static bool run_apart(const struct plain_test *t, void *arg, unsigned n) {
    struct rusage used;
    int status;

    *told = (struct told){0};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        run(t, arg);
    if (pid < 0 || wait4(pid, &status, 0, &used) < 0)
        abort();
    bool skipped = WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
    bool passed = t->options.signal ? WIFSIGNALED(status) && WTERMSIG(status) == t->options.signal
                                    : WIFEXITED(status) && WEXITSTATUS(status) == 0 && told->ended;
    if (!passed && WIFSIGNALED(status))
        plain_log("signal %d", WTERMSIG(status));
    else if (!passed && !told->ended)
        plain_log("called exit(%d)", WEXITSTATUS(status));
    printf("%s %u - %s::%s%s%s\n", passed || skipped ? "ok" : "not ok", n, t->suite, t->name,
           skipped ? " # SKIP " : "", skipped ? told->why_skipped : "");
    tell_cost(&used);
    return passed || skipped;
}

static bool is_wanted(const struct plain_test *t) {
    char name[256];

    snprintf(name, sizeof(name), "%s/%s", t->suite, t->name);
    if (fnmatch(filter, name, FNM_EXTMATCH) != 0 || (file && strcmp(basename(t->file), file) != 0))
        return false;
    if (lists)
        puts(name);
    return !lists;
}

static int run_all(void) {
    unsigned n = 0, n_bad = 0;

    for (unsigned i = 0; i < n_tests && !(fails_fast && n_bad > 0); i++) {
        const struct plain_test *t = &tests[i];

        if (!is_wanted(t))
            continue;
        if (!t->params) {
            n_bad += !run_apart(t, NULL, ++n);
            continue;
        }
        struct criterion_test_params p = t->params();
        for (size_t k = 0; k < p.length; k++)
            n_bad += !run_apart(t, (char *)p.params + k * p.size, ++n);
    }
    if (!lists)
        printf("1..%u\n", n);
    return n_bad > 0 || (file && n == 0 && !lists) ? FAILED : 0;
}

int plain_main(int argc, char *argv[]) {
    static const struct option options[] = {
        {"filter", required_argument, NULL, 'f'},
        {"file", required_argument, NULL, 's'},
        {"fail-fast", no_argument, NULL, 'q'},
        {"list", no_argument, NULL, 'l'},
        {0},
    };

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        if (c == 'f')
            filter = optarg;
        if (c == 's')
            file = optarg;
        fails_fast |= c == 'q';
        lists |= c == 'l';
        if (c == '?')
            return USAGE;
    }
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED)
        abort();
    return run_all();
}
