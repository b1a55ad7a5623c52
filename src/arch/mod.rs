//! Model families as data: what their layers hold, which metadata gives their sizes, how their tensors are named.
