#include <criterion/criterion.h>

int main(int argc, char *argv[]) {
    return plain_main(argc, argv);
}
