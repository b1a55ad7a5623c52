// Rows of a pass that follow each other in one sequence, and the records of layers' states that they go on from and
// leave.
#pragma once
#include "device.cuh"

// Where there is no record, and no stretch.
constexpr uint32_t NONE = 0xffffffffu;

struct __align__(16) Stretch {
    uint32_t first, count;  // rows; none for padding
    uint32_t from;          // record of the state before the first row; NONE for the beginning, where all is 0
    uint32_t to;            // receives the state behind the last row
    uint32_t before;        // receives the state before the last row, unless NONE
    uint32_t pad[3];
};
static_assert(sizeof(Stretch) == 32, "as in args.rs");

// The records of a session, each of which holds all states of a sequence.
struct Records {
    float *data;
    uint64_t elements;  // of a record
};

__device__ __forceinline__ float *record_at(const Records &records, uint32_t record, uint64_t offset) {
    return records.data + record * records.elements + offset;
}
