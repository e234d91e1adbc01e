#include "daemon/front/audit.h"

#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/printable.h"

int audit_admin(const char *client, const char *action, const char *target, const char *detail,
                int r, const struct err *err) {
    const char *why = "";

    if (r != 0)
        why = *err->message ? err->message : strerror(-r);
    log_event(WLOG_NOTICE, "audit",
              "action=%s target=%s detail=%s by=admin client=%s result=%s reason=%s", action,
              quoted(target ? target : "").s, quoted(detail ? detail : "").s, client,
              r == 0 ? "accepted" : "refused", quoted(why).s);
    return r;
}

void audit_signal(const char *action) {
    log_event(WLOG_NOTICE, "audit", "action=%s by=signal result=accepted", action);
}

void audit_key_file(const char *path) {
    struct stat st;

    if (*path && stat(path, &st) == 0 && st.st_mode & S_IROTH)
        log_event(WLOG_WARN, "keys_readable",
                  "path=%s mode=%04o reason=\"every user can read it: chmod o= FILE\"",
                  quoted(path).s, (unsigned)st.st_mode & 07777u);
}
