#include "base/control_group.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Returns whether @controller is one of @names, which are separated by commas. */
static bool has_controller(const char *names, const char *controller) {
    size_t n = strlen(controller);

    for (;;) {
        size_t len = strcspn(names, ",");

        if (len == n && memcmp(names, controller, n) == 0)
            return true;
        if (names[len] == 0)
            return false;
        names += len + 1;
    }
}

/* Reads @line, "ID:CONTROLLERS:PATH". Returns false if @controller is not among its controllers. */
static bool read_group_line(char *line, const char *controller, struct control_group *out) {
    char *names = strchr(line, ':');
    char *path = names ? strchr(names + 1, ':') : NULL;

    if (!path)
        return false;
    *path = 0;
    if (!has_controller(names + 1, controller))
        return false;
    snprintf(out->names, sizeof(out->names), "%s", names + 1);
    snprintf(out->path, sizeof(out->path), "%s", path + 1);
    return true;
}

bool control_group_find(const char *self, const char *controller, struct control_group *out) {
    char line[CONTROL_GROUP_NAMES + CONTROL_GROUP_PATH];
    bool found = false;
    FILE *f = fopen(self, "re");

    while (f && !found && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        found = read_group_line(line, controller, out);
    }
    if (f)
        fclose(f);
    return found;
}

void control_group_each(const char *root, const char *path,
                        void (*fn)(const char *folder, void *ctx), void *ctx) {
    char folder[1024];
    size_t n_root = strlen(root);

    if ((size_t)snprintf(folder, sizeof(folder), "%s%s", root, path) >= sizeof(folder))
        return;
    for (;;) {
        fn(folder, ctx);
        char *slash = strrchr(folder + n_root, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

int control_group_read(const char *folder, const char *name, const char *format, ...) {
    char file[1200];
    va_list args;
    int n = 0;

    snprintf(file, sizeof(file), "%s/%s", folder, name);
    FILE *f = fopen(file, "re");
    if (!f)
        return 0;
    va_start(args, format);
    n = vfscanf(f, format, args);
    va_end(args);
    fclose(f);
    if (n < 0)
        return 0;
    return n;
}
