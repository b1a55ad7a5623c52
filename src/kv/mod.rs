//! The KV cache: pages, their sharing and copying, and where a key lies inside one.
