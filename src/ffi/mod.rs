//! The C boundary: the only `extern "C"` functions of the library. Translates, nothing else.
