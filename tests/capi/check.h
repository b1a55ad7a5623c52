/* Assertions for the C tests: print what failed and where, and end the program. */
#ifndef SEGNO_TEST_CHECK_H
#define SEGNO_TEST_CHECK_H

#include <segno.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pointer of no type that becomes what is asked for. C++ wants to be told what C does by itself. */
#ifdef __cplusplus
struct untyped {
    void *pointer;
    template <typename T>
    operator T *() const {
        return static_cast<T *>(pointer);
    }
};
#define UNTYPED(p) (untyped{p})
#else
#define UNTYPED(p) (p)
#endif

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* The call must answer `expected`; an error object must say the same code and something readable, and is freed. */
#define EXPECT(expected, call)                                                                          \
    do {                                                                                                \
        segno_error *err = (segno_error *)(size_t)1;                                                    \
        segno_status got_ = (call);                                                                     \
        if (got_ != (expected)) {                                                                       \
            fprintf(stderr, "%s:%d: %s, expected %s: %s\n", __FILE__, __LINE__, segno_status_str(got_), \
                segno_status_str(expected), #call);                                                     \
            exit(1);                                                                                    \
        }                                                                                               \
        CHECK((err != NULL) == SEGNO_FAILED(got_));                                                     \
        if (err != NULL) {                                                                              \
            CHECK(segno_error_code(err) == got_);                                                       \
            CHECK(strlen(segno_error_message(err)) > 5);                                                \
            segno_error_free(err);                                                                      \
        }                                                                                               \
    } while (0)

#endif
