//! One forward pass as a device-free list of ops.
