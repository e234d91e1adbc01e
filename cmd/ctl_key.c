/*
 * weftctl key new - makes an API key of 32 random bytes, so that the plain checksum of it cannot be
 * reversed. The key itself is printed and not stored.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/text.h"
#include "base/util.h"
#include "cmd/cli.h"
#include "cmd/ctl_local.h"

#define KEY_BYTES 32
#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@"

#define USAGE "usage: weftctl key new [--expires=YYYY-MM-DD] [--operator] NAME FILE"

static const char usage[] =
    USAGE "\n"
          "Makes an API key of the tenant NAME, adds its checksum to FILE\n"
          "(api-keys of weftd), and prints the key, which is stored nowhere.\n"
          "The key expires at the end of the given day (UTC), else never. With\n"
          "--operator it sees the ended requests of all tenants (live view,\n"
          "GET /v1/requests). Then `weftctl reload`.\n";

/* Appends @line, as a line of its own, to the file @path, which is created with mode 0640. If there
 * is no room for the whole line, the file is restored, since weftd accepts no file with a part of a
 * key. Returns 0 or -errno. */
static int key_append(const char *path, const char *line) {
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0640), r = 0;
    char text[300], last = '\n';

    if (fd < 0)
        return -errno;
    /* otherwise ftruncate() could remove the line of another `key new` */
    (void)!flock(fd, LOCK_EX);
    off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) < 0)
        last = '\n';
    ssize_t n = snprintf(text, sizeof(text), "%s%s\n", last == '\n' ? "" : "\n", line), done = 0;
    while (done < n && r == 0) {
        ssize_t part = write(fd, text + done, (size_t)(n - done));

        r = part < 0 ? -errno : 0;
        done += MAX(part, 0);
    }
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r < 0)
        (void)!ftruncate(fd, end);
    close(fd);
    return r;
}

/* Returns true if @s is a day of the calendar, YYYY-MM-DD, that has not ended (UTC). */
static bool is_day_to_come(const char *s) {
    time_t now = time(NULL);
    struct tm tm = {0};
    char again[32], today[32];
    const char *end = strptime(s, "%Y-%m-%d", &tm);

    if (!end || *end || timegm(&tm) == -1)
        return false;
    strftime(again, sizeof(again), "%Y-%m-%d", &tm);
    strftime(today, sizeof(today), "%Y-%m-%d", gmtime_r(&now, &tm));
    return strcmp(s, again) == 0 && strcmp(s, today) >= 0;
}

int ctl_key(int argc, char **argv, bool json) {
    char key[5 + 2 * KEY_BYTES + 1] = "weft-", sum[65], line[200];
    unsigned char random[KEY_BYTES];
    struct sha256 s;

    const char *expires = NULL;
    bool is_operator = false;
    const struct cli_option options[] = {{"expires", CLI_TEXT, &expires, 0, 0},
                                         {"operator", CLI_TRUE, &is_operator, 0, 0}};
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);
    if (code >= 0)
        return code;
    if (expires && !is_day_to_come(expires))
        return cli_usage("--expires must be a future day, YYYY-MM-DD");
    if (n_args != 3 || strcmp(argv[1], "new") != 0)
        return cli_usage(USAGE);
    size_t n_name = strlen(argv[2]);
    if (n_name == 0 || n_name > 63 || strspn(argv[2], NAME_LETTERS) != n_name)
        return cli_usage("NAME must have 1 to 63 letters, digits, '-', '_', '.' or '@'");
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return cli_fail("cannot get random numbers: %s", strerror(errno));
    hex_write(key + 5, random, KEY_BYTES);
    sha256_init(&s);
    sha256_add(&s, key, strlen(key));
    sha256_hex(&s, sum);
    snprintf(line, sizeof(line), "%s:sha256$%s%s%s%s", argv[2], sum, expires ? " expires=" : "",
             text_or(expires, ""), is_operator ? " operator" : "");
    int r = key_append(argv[3], line);
    if (r < 0)
        return cli_fail("%s: %s", argv[3], strerror(-r));
    if (json)
        printf("{\"name\":\"%s\",\"key\":\"%s\"}\n", argv[2], key);
    else
        puts(key);
    return cli_flush(CLI_OK);
}
