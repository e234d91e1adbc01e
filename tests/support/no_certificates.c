/*
 * Keeps test programs from reading the machine's certificates: Criterion uses libgit2, which parses
 * all of them when a process begins, and each test is a process. It takes 3 ms, under
 * AddressSanitizer 12.
 */

int mbedtls_x509_crt_parse_file(void *chain, const char *path);
int mbedtls_x509_crt_parse_path(void *chain, const char *path);

/* Weak: a library of tests has them too, and is linked beside this. */
__attribute__((weak)) int mbedtls_x509_crt_parse_file(void *chain, const char *path) {
    return 0;
}

__attribute__((weak)) int mbedtls_x509_crt_parse_path(void *chain, const char *path) {
    return 0;
}
