#include "base/version.h"

#include <stdio.h>

void version_print(const char *program, const char *library) {
    printf("%s %s\n", program, WEFT_VERSION);
    printf("commit:   %s\n", version_commit);
    printf("compiler: %s\n", VERSION_COMPILER);
    printf("backends: %s%s%s\n", VERSION_BACKENDS, *library ? ", " : "", library);
}
