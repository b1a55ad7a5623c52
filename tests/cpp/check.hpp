// Assertions for the C++ tests: print what failed and where, and end the program.
#ifndef SEGNO_TEST_CHECK_HPP
#define SEGNO_TEST_CHECK_HPP

#include <segno.hpp>

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

#endif
