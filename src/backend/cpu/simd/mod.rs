//! Vector kernels, chosen at run time from one static table.
